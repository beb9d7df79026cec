"""What a stage's process leaves behind."""

from __future__ import annotations

from pathlib import Path

from radixlang.channel import ZmqReceiver
from radixlang.config import Config
from radixlang.messages import Ready, ToServer
from radixlang.process import Start, spawn


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
