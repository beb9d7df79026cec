"""The set-up scripts: a Python that cannot be used is one line; CI shows pytest's closing line and its failure."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def set_up(python: str, venv: Path) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "scripts" / "setup", python, venv, "dev"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_python(tmp_path: Path) -> None:
    done = set_up("no-such-python", tmp_path / "venv")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "setup: error: no-such-python is not installed; install Python 3.11 or later, or give make PYTHON=…"
    ]


def test_an_old_python(tmp_path: Path) -> None:
    old = executable(tmp_path / "python3", 'if [ "$1" = --version ]; then echo "Python 3.8.10"; else exit 1; fi')
    done = set_up(str(old), tmp_path / "venv")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "setup: error: Python 3.8.10 is too old; give make PYTHON=python3.11 or later"
    ]


def test_a_python_without_venv(tmp_path: Path) -> None:
    bare = executable(tmp_path / "python3", 'if [ "$1" = -m ]; then exit 1; else exit 0; fi')
    done = set_up(str(bare), tmp_path / "venv")
    assert done.returncode == 2
    assert "apt install python3-venv" in done.stderr


@pytest.fixture
def pretended(tmp_path: Path) -> Path:
    """A checkout whose Python only writes down what it is asked to do, and has an old torch."""
    for name in ("Makefile", "pyproject.toml", "scripts"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    executable(
        tmp_path / "python",
        f"""log={tmp_path}/calls
case "$*" in
  "-m venv"*) mkdir -p {tmp_path}/.venv/bin; cp "$0" {tmp_path}/.venv/bin/python
              printf '#!/bin/bash\\necho "$*" >> {tmp_path}/served\\n' > {tmp_path}/.venv/bin/radixlang
              chmod +x {tmp_path}/.venv/bin/radixlang ;;
  "-c "*torch*) exit 1 ;;
  *" install "*torch*) echo "$*" >> $log; [[ "$*" != *torch==2.13.0+cpu* ]] ;;
  *" install "*) echo "$*" >> $log ;;
  "-m pip --version") [ -e {tmp_path}/.venv/bin/radixlang ] ;;
esac""",
    )
    executable(tmp_path / "nvidia-smi", "exit 9")
    return tmp_path


def make(folder: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MAKEFLAGS": ""}
    command = ["make", f"PYTHON={folder}/python", *targets]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_serve_installs_once_and_prefers_a_cpu_torch(pretended: Path) -> None:
    first = make(pretended, "serve", "ARGS=--port 8000")
    assert first.returncode == 0, first.stderr
    installs = (pretended / "calls").read_text().splitlines()
    torches = [line.split("install ")[1] for line in installs if "torch" in line]
    assert [line.split()[0] for line in torches] == ["torch==2.13.0+cpu", "torch==2.13.0+cpu", "torch==2.13.0"]
    assert "download.pytorch.org/whl/cpu" in torches[1]
    assert installs[-1].endswith("install --editable .[cpu,gguf]")
    assert (pretended / "served").read_text() == "serve --model-path default --port 8000\n"
    assert make(pretended, "serve").returncode == 0
    assert len((pretended / "calls").read_text().splitlines()) == len(installs)
    future = (pretended / ".venv" / ".run").stat().st_mtime + 10
    os.utime(pretended / "pyproject.toml", (future, future))
    assert make(pretended, "serve").returncode == 0
    assert len((pretended / "calls").read_text().splitlines()) == 2 * len(installs)


def test_scripts_are_sound_shell() -> None:
    for script in ("scripts/check", "scripts/test", "scripts/lint", "scripts/setup", "scripts/env", ".ci/run"):
        assert subprocess.run(["bash", "-n", ROOT / script], check=False).returncode == 0, script


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("code", [0, 1])
def test_ci_ends_with_the_closing_line_and_the_exit_code(tmp_path: Path, code: int) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    closing = "1 failed, 2 passed in 3.21s" if code else "3 passed in 3.21s"
    (tmp_path / "Makefile").write_text(f"test:\n\t@echo '{closing}'\n\t@exit {code}\n")
    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(code)
    assert done.stdout.splitlines()[-1] == closing


def test_the_module_entry_point_reports_in_one_line() -> None:
    command = [sys.executable, "-m", "radixlang.launch_server", "--lora-paths", "a=b"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"radixlang: error: --lora-paths is known from SGLang .* this version\.\n", done.stderr)
