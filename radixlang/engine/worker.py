"""Entry of the engine's process: `python -m radixlang.engine.worker` (see `radixlang.process`)."""

from __future__ import annotations

import sys

from radixlang.channel import ZmqReceiver, ZmqSender
from radixlang.messages import Progress, Ready, ToEngine
from radixlang.process import Start, rank_name, run_stage

SWITCH_INTERVAL = 1e-4
"""seconds after which a thread of Python's must give way. The loop lets go of the interpreter several times in a
step and, beside a thread that compiles a constraint, would wait 5 ms to get it back each time"""


def engine(start: Start, sender: ZmqSender) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL)
    receiver = ZmqReceiver(start.inbox, ToEngine)
    # Import here: a fault of an import is then reported to the ring like any other.
    from radixlang.engine.build import build_engine

    loop = build_engine(
        start.config,
        receiver,
        sender,
        lambda task, done, total: sender.send(Progress(task, done, total)),
        followers=[ZmqSender(address) for address in start.followers],
        meeting=start.meeting,
        own_process=True,
    )
    sender.send(Ready("engine", loop.info))
    loop.scheduler.warm_up()
    loop.run()
    loop.executor.close()


def follower(start: Start, sender: ZmqSender) -> None:
    receiver = ZmqReceiver(start.inbox, bytes)
    from radixlang.executor.build import build_executor
    from radixlang.executor.follower import follow

    executor, _ = build_executor(start.config, lambda *_: None, start.rank, start.meeting)
    sender.send(Ready(rank_name("engine", start.rank), {}))
    follow(executor, receiver)
    executor.close()


def by_rank(start: Start, sender: ZmqSender) -> None:
    """The first rank is the engine, the others follow it."""
    (follower if start.rank else engine)(start, sender)


if __name__ == "__main__":
    run_stage("engine", by_rank)
