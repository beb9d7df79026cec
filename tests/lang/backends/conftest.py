from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lang.backends.api import Api, serving


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(Api()) as running:
        yield running
