from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fakes import Live, live


@pytest.fixture(scope="session")
def server() -> Iterator[Live]:
    """A generation server with default options."""
    with live() as running:
        yield running


@pytest.fixture(scope="session")
def embedder() -> Iterator[Live]:
    """A server of an embedding model."""
    with live(info={"is_generation": False}) as running:
        yield running


@pytest.fixture(scope="session")
def qwen() -> Iterator[Live]:
    """A server that reads Qwen's calls and thoughts."""
    with live(tool_call_parser="qwen", reasoning_parser="qwen3", marks=("<think>", "</think>")) as running:
        yield running
