"""Fixtures of the whole suite: where real models and reference data are. Absent ones skip with a reason."""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("RADIXLANG_SHARED", ROOT.parent / "shared"))


POOL = 8192
"""tokens of KV for a real model; by itself it takes gigabytes, and a start waits for seconds until it has them"""


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, and the tests of the one server stay together: it is long in starting."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "e2e" if nodeid.startswith("tests/e2e/") else super()._split_scope(nodeid)

    return Scheduling(config, log)


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(scope="session", autouse=True)
def triton_interprets_kernels_and_little_else() -> None:
    """Its interpreter patches all of the language, and puts it back, at each launch and each call of a function,
    and computes for each sum whether it overflows, which is dropped unless it debugs. Both take longer than most
    kernels of tests do. A version that has neither by these names is left as it is."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    patch, patched = getattr(interpreter, "_patch_lang", None), set[Any]()
    options: Any = getattr(interpreter.interpreter_builder, "options", None)
    if patch is None or not hasattr(options, "sanitize_overflow"):
        return

    def once(function: Any) -> SimpleNamespace:
        if function not in patched:
            patched.add(function)
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = once
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


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
        with (Path(tempfile.gettempdir()) / f"radixlang-tests-{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that run the tests together would all fetch it
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


@functools.cache
def real_tokenizer(path: str | Path) -> Any:
    """A packaged model's tokenizer, read once: Gemma's takes seconds."""
    from radixlang.text.tokenizer import load_tokenizer

    return load_tokenizer(path)


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

    with Engine(str(smollm2_path), inline=True, dtype="float32", max_total_tokens=POOL) as engine:
        yield engine
