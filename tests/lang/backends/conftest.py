from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lang.backends.api import Api, Server


@pytest.fixture(scope="package")
def api_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def api(api_server: Server) -> Iterator[Api]:
    with api_server.serving(Api()) as running:
        yield running
