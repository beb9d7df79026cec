"""Entry of the engine's process: `python -m radixlang.engine.worker` (see `radixlang.process`)."""

from __future__ import annotations

from radixlang.channel import ZmqReceiver, ZmqSender
from radixlang.messages import Progress, Ready, ToEngine
from radixlang.process import Start, run_stage


def engine(start: Start, sender: ZmqSender) -> None:
    receiver = ZmqReceiver(start.inbox, ToEngine)
    # Import here: a fault of an import is then reported to the ring like any other.
    from radixlang.engine.build import build_engine

    loop = build_engine(
        start.config, receiver, sender, lambda task, done, total: sender.send(Progress(task, done, total))
    )
    sender.send(Ready("engine", loop.info))
    loop.run()
    loop.executor.close()


if __name__ == "__main__":
    run_stage("engine", engine)
