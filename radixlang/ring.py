"""The ring of processes, started and watched over: engine and detokenizer beside the one that serves.

Every process is a fresh interpreter (`python -m …`), so a user's script needs no `__main__` guard. A child
leaves when its standard input closes, that is when this process ends, however it ends. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from radixlang.channel import LocalChannel, Receiver, Sender, ZmqReceiver, ZmqSender
from radixlang.config import Config
from radixlang.errors import ConfigError, EngineDeadError, ModelError
from radixlang.log import get_logger
from radixlang.messages import Dead, Drain, Progress, Ready, Stopped, ToServer
from radixlang.process import FOLLOWED, Start, rank_name, spawn

if TYPE_CHECKING:
    from radixlang.server.hub import Hub

log = get_logger(__name__)

STARTUP_TIMEOUT = 1800.0
"""seconds; large checkpoints on slow disks take long, a hung process must still be noticed"""
LAST_WORDS_WAIT = 3.0
"""seconds in which the reason of a stage's death must arrive"""
LEAVING = 60.0
"""seconds for an engine with nothing to do to write to storage what it has computed"""
LONGEST_SOCKET = 103
"""bytes that the path of a socket may have on macOS; Linux takes four more"""

ProgressHook = Callable[[str, int, int], None]


class Ring(Protocol):
    """A running engine and detokenizer, seen from the server: a way in, a way out, and what they said."""

    to_engine: Sender
    from_ring: Receiver
    info: dict[str, Any]

    def dead(self) -> str | None:
        """None while all is well, else what happened in a sentence."""
        ...

    def killed(self) -> str | None:
        """The same, if it happened to a process from outside: then no other's death was the reason."""
        ...

    def close(self, patience: float = 0.0) -> None:
        """End it. An engine that was told to `Drain` may take `patience` seconds to write to storage what it has
        computed."""
        ...


class ProcessRing:
    """Engine and detokenizer in processes of their own, joined by ZeroMQ over local sockets.

    With `tp_size` N there are N engine processes. The first is the ring's; the others stand beside it, take its
    plans, and tell the server directly when they are ready or die.
    """

    def __init__(self, config: Config, progress: ProgressHook | None = None) -> None:
        self._folder = socket_folder()
        engine_in, detokenizer_in, server_in = (
            f"ipc://{self._folder}/{name}" for name in ("engine", "detokenizer", "server")
        )
        self.info: dict[str, Any] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.from_ring: Receiver = ZmqReceiver(server_in, ToServer)
        meeting = os.path.join(self._folder, "ranks")
        followers = {rank: f"ipc://{self._folder}/engine-{rank}" for rank in range(1, config.device.tp_size)}
        try:
            self._children["engine"] = spawn(
                "radixlang.engine.worker",
                Start(
                    config,
                    engine_in,
                    detokenizer_in,
                    self._folder,
                    meeting=meeting,
                    followers=tuple(followers.values()),
                ),
            )
            for rank, inbox in followers.items():
                self._children[rank_name("engine", rank)] = spawn(
                    "radixlang.engine.worker",
                    Start(config, inbox, server_in, self._folder, rank=rank, meeting=meeting),
                )
            self._children["detokenizer"] = spawn(
                "radixlang.text.worker", Start(config, detokenizer_in, server_in, self._folder)
            )
            self.to_engine: Sender = ZmqSender(engine_in)
            self._await_ready(progress)
        except BaseException:
            self.close()
            raise

    def _await_ready(self, progress: ProgressHook | None) -> None:
        waiting = set(self._children)
        deadline = time.monotonic() + STARTUP_TIMEOUT
        while waiting:
            for message in self.from_ring.receive(0.25):
                if isinstance(message, Ready):
                    waiting.discard(message.process)
                    self.info |= message.info
                elif isinstance(message, Progress) and progress is not None:
                    progress(message.task, message.done, message.total)
                elif isinstance(message, Dead):
                    raise start_error(first_cause(self, message))
            problem = self.dead()
            if problem:
                raise self._last_words() or EngineDeadError(problem)
            if time.monotonic() > deadline:
                raise EngineDeadError(
                    f"No answer from {', '.join(sorted(waiting))} after {STARTUP_TIMEOUT:.0f} s."
                )

    def _last_words(self) -> Exception | None:
        """Why a stage died, if it could still say so: its message may be on the way."""
        until = time.monotonic() + LAST_WORDS_WAIT
        while time.monotonic() < until:
            for message in self.from_ring.receive(0.1):
                if isinstance(message, Dead):
                    return start_error(first_cause(self, message))
        return None

    def dead(self) -> str | None:
        # 0: it has drained. Last messages say so, of both.
        return self.killed() or self._first_end(lambda code: code not in (0, FOLLOWED))

    def killed(self) -> str | None:
        # Libraries abort when another process does not answer.
        return self._first_end(lambda code: code < 0 and code != -signal.SIGABRT)

    def _first_end(self, counts: Callable[[int], bool]) -> str | None:
        """What happened to the first process that has ended with an exit code that counts."""
        for name, child in self._children.items():
            code = child.poll()
            if code is not None and counts(code):
                first = name == "engine" and rank_name(name, 1) in self._children
                return _ending(f"{name} rank 0" if first else name, code)
        return None

    @property
    def left(self) -> bool:
        """The engine has ended: after a `Drain`, when all it had computed is in storage."""
        return self._children["engine"].poll() is not None

    def pids(self) -> list[int]:
        """Process ids of the children."""
        return [child.pid for child in self._children.values()]

    def close(self, patience: float = 0.0) -> None:
        """End the children and remove the sockets. Safe to call twice."""
        if patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._children["engine"].wait(patience)
        for child in self._children.values():
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
        for child in self._children.values():
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for end in (getattr(self, "to_engine", None), self.from_ring):
            if end is not None:
                end.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def socket_folder() -> str:
    """A new private folder for sockets: among the temporary files, or in /tmp where that path is too long.

    Raises:
        ConfigError: neither will do.
    """
    problem = f"its path is too long for sockets, which may have {LONGEST_SOCKET} bytes"
    for place in (None, "/tmp"):
        try:
            folder = tempfile.mkdtemp(prefix="radixlang-", dir=place)
        except OSError as error:
            problem = error.strerror or str(error)
            continue
        if len(os.fsencode(os.path.join(folder, "detokenizer"))) <= LONGEST_SOCKET:
            return folder
        os.rmdir(folder)
    raise ConfigError(f"The folder for temporary files cannot be used: {problem}; set TMPDIR to another one.")


class InlineRing:
    """The same ring in threads of this process (`Engine(inline=True)`, tests)."""

    def __init__(self, config: Config, progress: ProgressHook | None = None) -> None:
        from radixlang.engine.build import build_engine
        from radixlang.text.worker import DetokenizerLoop, load_for

        if config.device.tp_size > 1:
            raise ConfigError(
                f"--tp-size {config.device.tp_size} needs a process for each rank; drop inline=True, "
                "or use --tp-size 1."
            )
        tokenizer = load_for(config)  # first: its faults are found before weights load
        self.to_engine: Sender = LocalChannel()
        self._middle, back = LocalChannel(), LocalChannel()
        self.from_ring: Receiver = back
        self._problem: str | None = None
        engine = build_engine(config, self.to_engine, self._middle, progress or (lambda *_: None))  # type: ignore[arg-type]
        self.engine = engine
        self.info = engine.info
        self._detokenizer = DetokenizerLoop(tokenizer, self._middle, back)
        self._threads = [
            threading.Thread(target=self._guard, args=(name, target), name=name, daemon=True)
            for name, target in (("engine", engine.run), ("detokenizer", self._detokenizer.run))
        ]
        for thread in self._threads:
            thread.start()

    def _guard(self, name: str, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            log.error("the %s died", name, exc_info=error)
            self._problem = f"The {name} died: {type(error).__name__}: {error}"

    def dead(self) -> str | None:
        return self._problem

    def killed(self) -> str | None:
        return None  # threads are not

    def close(self, patience: float = 0.0) -> None:
        engine, detokenizer = self._threads
        self.to_engine.send(Drain())
        engine.join(10)
        if engine.is_alive():
            log.warning("the engine is still at work and is left to the end of the process")
            return
        if self._problem:  # the engine could not say so
            self._middle.send(Stopped())
        detokenizer.join(10)
        self.engine.executor.close()


def _ending(name: str, code: int) -> str:
    """A sentence about a process that has ended, and what to do."""
    how, hint = f"exited with code {code}", ""
    if code < 0:
        number = -code
        known = number in set(signal.Signals)  # not all real-time signals have names
        how = f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"
    if code == -signal.SIGKILL:
        hint = (
            " Systems do this to processes when memory is short: see the system's log, and lower "
            "--mem-fraction-static, --max-total-tokens or --context-length if it was so."
        )
    others = ", and the others cannot go on without it" if " rank " in name else ""
    return f"The {name} process {how}{others}; start again.{hint}"


def first_cause(ring: Ring, *deaths: Dead) -> Dead | str:
    """Of what died first its last words or, if it had none, what happened to it: processes that have followed it
    into death may have said so earlier."""
    until = time.monotonic() + LAST_WORDS_WAIT
    killed = ring.killed()
    if killed:  # whatever the others noticed of it
        return killed
    while True:
        for dead in deaths:
            if not dead.follows:
                return dead
        problem = ring.dead()
        if problem:
            return problem
        if time.monotonic() > until:
            return deaths[0]
        deaths += tuple(message for message in ring.from_ring.receive(0.1) if isinstance(message, Dead))


def start_error(message: Dead | str) -> Exception:
    """The exception for a process that died while starting."""
    if isinstance(message, str):
        return EngineDeadError(message)
    if message.config_fault:
        # The worker told one of the two apart by type; for the reader of the line they are the same.
        return ModelError(message.message)
    return EngineDeadError(f"The {message.process} did not start: {message.message}")


class RingReader:
    """A thread that hands what the ring says to a hub on its event loop, and notices a dead ring."""

    def __init__(self, ring: Ring, hub: Hub, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._ring = ring
        self._hub = hub
        self._loop = loop
        self._on_end = on_end
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="ring-reader", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        watched = time.monotonic()
        while not self._stop.is_set():
            messages = self._ring.from_ring.receive(0.2)
            try:
                deaths = [message for message in messages if isinstance(message, Dead)]
                living = [message for message in messages if not isinstance(message, Dead)]
                if living:
                    self._loop.call_soon_threadsafe(self._hub.dispatch, living)
                if deaths:
                    self._died(first_cause(self._ring, *deaths))
                    return
                if any(isinstance(message, Stopped) for message in living):
                    self._loop.call_soon_threadsafe(self._on_end)
                    return
                now = time.monotonic()
                if now - watched > 0.5:
                    watched = now
                    problem = self._ring.dead()
                    if problem:
                        self._died(problem)
                        return
            except RuntimeError:
                return  # the loop is closed: nobody listens any more

    def _died(self, cause: Dead | str) -> None:
        if isinstance(cause, Dead):
            last: list[ToServer] = [cause]
            self._loop.call_soon_threadsafe(self._hub.dispatch, last)
        else:
            log.error("%s", cause)
            self._loop.call_soon_threadsafe(self._hub.fail_all, EngineDeadError(cause))
        self._loop.call_soon_threadsafe(self._on_end)

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(2)
