"""The doctor: finds what is there, survives a broken torch, and names the command for what is missing."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from radixlang.cli import doctor

TORCH: dict[str, Any] = {"torch": "2.13.0", "devices": [], "numba": "0.61", "triton": None}


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A torch that the doctor believes in; tests change it."""
    found = dict(TORCH)
    monkeypatch.setattr(doctor, "probe", lambda modules: found)
    return found


def python_that(tmp_path: Path, script: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_this_machine_is_fine(torch: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["cpu"]["cores"] >= 1
    assert found["memory"]["total"] > 2**20
    assert found["packages"]["numpy"]
    assert found["would_use"] == "cpu, attention backend cpu"
    assert doctor.run([]) == 0
    out = capsys.readouterr().out
    assert "would use" in out
    assert "All that is needed is here." in out


def test_a_broken_torch_is_a_problem_and_no_crash(
    torch: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    torch["torch_error"] = "ImportError: libsomething.so: not found"
    assert doctor.run([]) == 1
    out = capsys.readouterr().out
    assert "libsomething" in out
    assert "pip install --force-reinstall torch" in out


def test_the_probe_keeps_what_came_before_a_crash(tmp_path: Path) -> None:
    python = python_that(tmp_path, 'echo \'{"torch": "9.9"}\'; echo noise; kill -SEGV $$')
    found = doctor.probe(python=python)
    assert found["torch"] == "9.9"
    assert "-11" in found["torch_error"]
    python = python_that(tmp_path, "echo Traceback >&2; echo 'ImportError: no' >&2; exit 1")
    assert doctor.probe(python=python) == {"torch_error": "ImportError: no"}


def test_broken_packages_are_named_and_torch_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that leaves in the middle, and the one that reports are made with elsewhere."""
    for name, text in (
        ("rich", "raise RuntimeError('no colours')"),
        ("gguf", "raise SystemExit(3)"),
        ("numba", "import os; os._exit(7)"),
        ("triton", "raise OSError('no compiler')"),
        ("torch", "import triton"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert doctor.run([]) == 1
    out = capsys.readouterr().out
    assert "note: gguf does not work (SystemExit: 3): pip install --force-reinstall gguf" in out
    assert "problem: rich does not work (RuntimeError: no colours)" in out
    assert "problem: numba does not work (the process ended with code 7)" in out
    assert "problem: triton does not work (OSError: no compiler)" in out
    assert "torch does not work" not in out


def test_missing_and_old_packages_come_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=999.0", "no-such-thing>=1.2", "numba>=0.61; extra == 'cpu'", "no-tool>=1; extra == 'dev'"]
    monkeypatch.setattr(doctor, "declared_requirements", lambda: lines)
    versions, problems = doctor.check_packages()
    assert versions["no-such-thing"] is None
    assert "no-tool" not in versions
    assert any("numpy" in p and "too old: pip install 'numpy>=999.0'" in p for p in problems)
    assert "no-such-thing is missing: pip install 'no-such-thing>=1.2'" in problems
    assert len(problems) == 2


def test_accelerators_are_preferred(torch: dict[str, Any]) -> None:
    torch["devices"] = [{"device": "cuda:0", "name": "X", "memory": 2**30, "capability": "9.0"}]
    assert "triton is missing" in str(doctor.would_use(torch))
    torch["triton"] = "3.7"
    torch["fa3_error"] = "No module named 'flash_attn_3'"
    assert "backend triton (fa3 is missing: No module named" in str(doctor.would_use(torch))
    torch["fa3"] = True
    assert "attention backend fa3 " in str(doctor.would_use(torch))
    torch["devices"][0]["capability"] = "8.0"
    assert doctor.would_use(torch) == "cuda:0, attention backend triton"
    assert doctor.would_use({"torch_error": "x"}) is None
    assert "numba is missing" in str(doctor.would_use({"devices": []}))


def test_hopper_kernels_are_named_only_where_they_run(
    torch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "declared_requirements", lambda: ["tokenspeed-fa3==999; extra == 'hopper'"])
    device = {"device": "cuda:0", "name": "X", "memory": 2**30}
    for capability, wanted in (("9.0", True), ("8.9", False)):
        torch["devices"] = [device | {"capability": capability}]
        notes = doctor.examine()["notes"]
        assert any("pip install 'radixlang[hopper]'" in note for note in notes) is wanted


def test_the_backends_it_names_exist() -> None:
    from radixlang.attention import BACKENDS

    found = [
        {"devices": devices, "triton": x, "numba": x, "fa3": bool(x)}
        for devices in ([], [{"device": "cuda:0"}], [{"device": "cuda:0", "capability": "9.0"}])
        for x in (None, "1")
    ]
    for torch in found:
        assert str(doctor.would_use(torch)).split("attention backend ")[1].split()[0] in BACKENDS


def test_a_used_port_is_noticed() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert not doctor.port_is_free(other.getsockname()[1])
