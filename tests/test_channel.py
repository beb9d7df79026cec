import threading

import msgspec
import pytest

from radixlang.channel import LocalChannel, ZmqReceiver, ZmqSender
from radixlang.errors import AbortedError, ConfigError, EngineError, OverloadedError, from_status
from radixlang.messages import Abort, Control, Drain, Generate, ToEngine, pack_ids, unpack_ids
from radixlang.registry import Registry
from radixlang.sampling_params import SamplingParams


def test_local_channel_keeps_order_and_waits():
    channel = LocalChannel()
    assert channel.receive(0) == []
    assert channel.receive(0.01) == []
    threading.Timer(0.05, channel.send, args=("a",)).start()
    assert channel.receive(5) == ["a"]
    channel.send(1)
    channel.send(2)
    channel.send_all([3, 4])
    channel.send_all([])
    assert channel.receive(0) == [1, 2, 3, 4]


def test_zmq_channel_carries_the_tagged_union(tmp_path):
    address = f"ipc://{tmp_path}/s"
    receiver, sender = ZmqReceiver(address, ToEngine), ZmqSender(address)
    sent = [
        Generate("r", pack_ids([1, 2, 3]), SamplingParams(stop=("x",)), namespace="n"),
        Abort("r"),
        Control(4, "flush_cache", {"a": 1}),
        Drain(),
    ]
    sender.send(sent[0])
    sender.send_all(sent[1:3])
    sender.send_all([])
    sender.send(sent[3])
    got = []
    while len(got) < len(sent):
        got += receiver.receive(5)
    assert got == sent
    assert unpack_ids(got[0].input_ids).tolist() == [1, 2, 3]
    sender.close()
    receiver.close()


def test_a_foreign_message_is_refused(tmp_path):
    address = f"ipc://{tmp_path}/s"
    receiver, sender = ZmqReceiver(address, ToEngine), ZmqSender(address)
    sender.send({"type": "Nonsense"})
    with pytest.raises(msgspec.ValidationError):
        receiver.receive(5)
    sender.close()
    receiver.close()


def test_registry_imports_on_use_and_lists_known_names():
    registry = Registry("thing", "things", {"ok": "json:loads", "gone": "no_such_module_here:x"})
    assert registry.get("ok")("1") == 1
    assert "ok" in registry
    assert list(registry) == ["ok", "gone"]
    with pytest.raises(ConfigError, match="known are: ok, gone"):
        registry.get("other")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        registry.get("gone")


def test_errors_cross_processes_by_status():
    assert isinstance(from_status(503, "x"), OverloadedError)
    assert isinstance(from_status(499, "x"), AbortedError)
    assert isinstance(from_status(500, "x"), EngineError)
