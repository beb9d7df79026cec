"""How a stage of the ring lives in a process of its own: how it starts, and that it leaves with its parent.

The parent writes one msgpack frame to the child's standard input and keeps it open; when it closes, the
parent is gone. Must not know what a stage does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

import msgspec

from radixlang.channel import ZmqSender, deliver_all
from radixlang.config import Config
from radixlang.errors import ConfigError, ModelError, RankLostError
from radixlang.log import configure, get_logger
from radixlang.messages import Dead

log = get_logger(__name__)

FOLLOWED = 3
"""exit code of a stage that ends because another process has: its `Dead` says so"""


class Start(msgspec.Struct):
    """What a stage is told: its configuration, the address it reads from and the one it writes to, and the folder
    of the ring's sockets, which it removes when its parent is gone.

    Engine processes of a tensor-parallel group also learn their rank, the file in which the ranks meet, and the
    first one the addresses its followers read plans from.
    """

    config: Config
    inbox: str
    outbox: str
    folder: str
    rank: int = 0
    meeting: str = ""
    followers: tuple[str, ...] = ()


def rank_name(name: str, rank: int) -> str:
    """What a stage's process is called: followers of the first engine process by their rank."""
    return f"{name} rank {rank}" if rank else name


def spawn(module: str, start: Start) -> subprocess.Popen[bytes]:
    """Start `python -m module` as a stage. The child ignores the terminal's signals."""
    child = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, start_new_session=True)
    frame = msgspec.msgpack.encode(start)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, as whoever watches it will see
        child.stdin.write(len(frame).to_bytes(4, "little") + frame)
        child.stdin.flush()
    return child


def run_stage(name: str, body: Callable[[Start, ZmqSender], None]) -> None:
    """The main function of a stage's process: run `body`, and tell the ring why if it ends by an error."""
    stream = sys.stdin.buffer
    size = int.from_bytes(stream.read(4), "little")
    frame = stream.read(size)
    if not size or len(frame) < size:
        return  # the parent ended while it said what to do
    start = msgspec.msgpack.decode(frame, type=Start)
    name = rank_name(name, start.rank)
    configure(start.config.log.log_level, name)
    _leave_with_parent(start.folder)
    sender = ZmqSender(start.outbox)
    code = 0
    try:
        body(start, sender)
    except (ConfigError, ModelError) as error:
        sender.send(Dead(name, str(error), "", config_fault=True))
        code = 2
    except RankLostError as error:
        log.error("the %s ends: %s", name, error)
        sender.send(Dead(name, str(error), "", follows=True))
        code = FOLLOWED
    except BaseException as error:
        log.error("the %s died", name, exc_info=error)
        sender.send(Dead(name, f"{type(error).__name__}: {error}", traceback.format_exc()))
        code = 1
    deliver_all()  # the exit below would lose what is still on its way
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of libraries must not keep a stage alive.
    os._exit(code)


def _leave_with_parent(folder: str) -> None:
    # The parent drains on these and then closes our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def watch() -> None:
        while os.read(0, 1):
            pass
        # A parent that was killed could not do it.
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
