"""One-way typed queues between the stages of the ring: over ZeroMQ, or in one process.

A channel has one reader and any number of writers. Must not know what the messages mean.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class Sender(Protocol):
    def send(self, message: Any) -> None: ...

    def send_all(self, messages: Sequence[Any]) -> None:
        """Send several, in order; cheaper than one by one."""
        ...

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self, timeout: float | None) -> list[Any]:
        """All waiting messages; waits up to `timeout` seconds for the first (None: for ever, 0: not at all)."""
        ...

    def close(self) -> None: ...


class LocalChannel:
    """An in-process queue with the same two methods; messages are passed as they are."""

    def __init__(self) -> None:
        self._items: collections.deque[Any] = collections.deque()
        self._ready = threading.Condition()

    def send(self, message: Any) -> None:
        with self._ready:
            self._items.append(message)
            self._ready.notify()

    def send_all(self, messages: Sequence[Any]) -> None:
        with self._ready:
            self._items.extend(messages)
            self._ready.notify()

    def receive(self, timeout: float | None) -> list[Any]:
        if timeout == 0 and not self._items:
            return []
        with self._ready:
            if not self._items and timeout != 0:
                self._ready.wait(timeout)
            items = list(self._items)
            self._items.clear()
            return items

    def close(self) -> None:
        """Nothing to release."""


class ZmqSender:
    """The writing end at a ZeroMQ address (`ipc://…` or `tcp://127.0.0.1:…`). One thread only."""

    def __init__(self, address: str) -> None:
        import zmq

        self._socket: Any = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Any) -> None:
        self._socket.send(self._encoder.encode(message))

    def send_all(self, messages: Sequence[Any]) -> None:
        if messages:
            self._socket.send_multipart([self._encoder.encode(message) for message in messages])

    def close(self) -> None:
        self._socket.close()


def deliver_all() -> None:
    """Close every ZeroMQ socket of this process, and wait up to two seconds for what was sent to leave it."""
    import zmq

    zmq.Context.instance().destroy(linger=2000)


class ZmqReceiver:
    """The reading end: binds the address and decodes messages of the union `kind`."""

    def __init__(self, address: str, kind: Any) -> None:
        import zmq

        self._zmq = zmq
        self.socket: Any = zmq.Context.instance().socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(address)
        self._readable = int(zmq.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(kind)

    def receive(self, timeout: float | None) -> list[Any]:
        wait = None if timeout is None else int(timeout * 1000)
        if timeout != 0 and not self.socket.poll(wait):
            return []
        out: list[Any] = []
        # asked first: an exception for an empty socket, raised in every step, costs more
        while self.socket.get(self._zmq.EVENTS) & self._readable:
            out += map(self._decoder.decode, self.socket.recv_multipart(self._zmq.NOBLOCK))
        return out

    def close(self) -> None:
        self.socket.close()
