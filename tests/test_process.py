"""What a stage's process leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from radixlang.channel import ZmqReceiver
from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.messages import Ready, ToServer
from radixlang.process import Start, spawn
from radixlang.ring import LONGEST_SOCKET, socket_folder


def test_a_stage_whose_parent_is_gone_removes_the_sockets_and_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "ring"
    folder.mkdir()
    inbox, outbox = (f"ipc://{folder}/{name}" for name in ("in", "out"))
    heard = ZmqReceiver(outbox, ToServer)
    child = spawn(
        "radixlang.text.worker", Start(Config.from_flat(skip_tokenizer_init=True), inbox, outbox, str(folder))
    )
    assert [type(message) for message in heard.receive(20)] == [Ready]
    assert child.stdin is not None
    child.stdin.close()  # as the system does when the parent ends, however it ends
    assert child.wait(10) == 0
    assert not folder.exists()
    heard.close()


@pytest.mark.parametrize("told", [b"", b"\x09\0\0\0abc"])
def test_a_stage_whose_parent_ends_before_it_is_told_what_to_do_leaves_in_silence(told: bytes) -> None:
    code = "from radixlang.process import run_stage; run_stage('engine', print)"
    child = subprocess.run([sys.executable, "-c", code], input=told, capture_output=True, timeout=20, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (0, b"", b"")


def test_sockets_find_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = socket_folder()
    assert len(os.path.join(folder, "detokenizer")) <= LONGEST_SOCKET
    os.rmdir(folder)
    assert not list(long.iterdir())

    def full(**_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(ConfigError, match="No space left on device; set TMPDIR"):
        socket_folder()
