"""Compiled code on a disk that is damaged, full or not writable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from radixlang.kept_code import compile_kept

numba = pytest.importorskip("numba")
SOURCE = "def triple(x):\n    return 3 * x\n"


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[[bool], int]:
    """Compiles a function whose cache lies in `tmp_path`, and calls it with 5."""
    file = tmp_path / "some_module.py"
    file.write_text(SOURCE)
    space: dict[str, object] = {"__name__": "some_module", "__file__": str(file)}
    exec(compile(SOURCE, str(file), "exec"), space)
    function = space["triple"]

    def one(kept: bool) -> int:
        return int(numba.njit("i8(i8)", cache=kept)(function)(5))

    one.function = function  # type: ignore[attr-defined]
    return one


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_files_that_were_cut_off_are_made_anew(
    compiled: Callable[[bool], int], tmp_path: Path, kind: str, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    assert compile_kept(compiled.function, compiled) == 15  # type: ignore[attr-defined]
    (file,) = tmp_path.rglob(f"*.{kind}")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with caplog.at_level(logging.WARNING, "radixlang.kept_code"):
        assert compile_kept(compiled.function, compiled) == 15  # type: ignore[attr-defined]
        assert compile_kept(compiled.function, compiled) == 15  # type: ignore[attr-defined]
    assert len(caplog.records) <= 1
    assert file.stat().st_size == len(whole)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("no locator available")])
def test_a_disk_that_takes_nothing_costs_the_time_alone(compiled: Callable[[bool], int], error: Exception) -> None:
    def full(kept: bool) -> int:
        if kept:
            raise error
        return compiled(False)

    assert compile_kept(compiled.function, full) == 15  # type: ignore[attr-defined]
