"""Replicas behind a router, in virtual time.

One replica is simulated event by event. Of several, each runs by itself for a window of time: the router sends
what is due in the window by what it knew at its beginning, and answers are heard at its end. So replicas need
nothing of each other, and can be spread over processes. A request that follows an answer within the same window
is sent at its end.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from radixlang.bench.play import Asked, Ideal, Play, answer_key
from radixlang.bench.workloads import Text, content
from radixlang.engine.idle import Collector
from radixlang.errors import EngineError
from radixlang.simulate.cost import EngineModel
from radixlang.simulate.replica import Done, Job, Replica, vocabulary
from radixlang.simulate.router import ROUTERS, Router


@dataclass(frozen=True)
class Cluster:
    """`window` in seconds; `processes` that replicas are spread over; `exact` as in `Replica`; `best`: compare
    with an infinite cache that all replicas share."""

    replicas: int = 1
    router: str = "round-robin"
    window: float = 0.1
    processes: int = 1
    exact: bool = False
    best: bool = True
    seed: int = 0


class Sent(NamedTuple):
    """A request on its way to a replica, its prompt still as texts."""

    replica: int
    id: int
    arrival: float
    texts: tuple[Text, ...]
    output: int
    key: int


class Load(NamedTuple):
    """What one replica has done."""

    requests: int
    busy: float
    """seconds spent in steps"""
    steps: int
    retractions: int


Order: TypeAlias = tuple[float, list[Sent]]
"""`until` and `sent` of `Fleet.run`"""
Answer: TypeAlias = list[Done] | dict[int, Load] | str
"""of a run; of the end; an error. Requests are small and many: pickle would take ten times as long."""
_PACKER = msgspec.msgpack.Encoder()
_ORDERS, _ANSWERS = msgspec.msgpack.Decoder(Order), msgspec.msgpack.Decoder(Answer)


class Fleet:
    """Replicas of one process: those whose number is `first` plus a multiple of `stride`. What is idle costs
    nothing: a replica is made when something is sent to it, and asked for its turns while it has any."""

    def __init__(self, model: EngineModel, cluster: Cluster, first: int = 0, stride: int = 1) -> None:
        self._vocab = vocabulary(model.limits)
        self._numbers = range(first, cluster.replicas, stride)
        self._model = model
        self._exact = cluster.exact
        self._replicas: dict[int, Replica] = {}
        self._working: dict[int, Replica] = {}

    def run(self, until: float, sent: list[Sent], first: bool = False) -> list[Done]:
        """Send these and run all replicas to `until`; with `first`, to the first end of a request in each."""
        for item in sent:
            replica = self._working[item.replica] = self.replica(item.replica)
            prompt = content(item.texts, self._vocab)
            replica.send(Job(item.id, item.arrival, prompt, item.output, item.key))
        done: list[Done] = []
        for number, replica in list(self._working.items()):
            done += replica.run(until, first)
            if replica.next_time is None:
                del self._working[number]
        return done

    def replica(self, number: int) -> Replica:
        """That one, made when it is first asked for."""
        found = self._replicas.get(number)
        if found is None:
            model = self._model
            found = self._replicas[number] = Replica(model.limits, model.cost, model.overlap, self._exact)
        return found

    def loads(self) -> dict[int, Load]:
        """What each has done so far, by number."""
        out = dict.fromkeys(self._numbers, Load(0, 0.0, 0, 0))
        for number, replica in self._replicas.items():
            totals = replica.scheduler.totals
            out[number] = Load(totals.num_requests, replica.busy, replica.steps, totals.num_retracted_requests)
        return out


def serve(pipe: Connection, model: EngineModel, cluster: Cluster, first: int, stride: int) -> None:
    """A process of its own: runs its fleet when told, until it is told nothing."""
    fleet, collector = Fleet(model, cluster, first, stride), Collector()
    while order := pipe.recv_bytes():
        try:
            pipe.send_bytes(_PACKER.encode(fleet.run(*_ORDERS.decode(order))))
            collector.turn(idle=False)
        except Exception as error:
            pipe.send_bytes(_PACKER.encode(f"{type(error).__name__}: {error}"))
            return
    pipe.send_bytes(_PACKER.encode(fleet.loads()))


class Fleets:
    """All replicas, in this process or in several."""

    def __init__(self, model: EngineModel, cluster: Cluster) -> None:
        self._count = min(cluster.processes, cluster.replicas)
        self._own = Fleet(model, cluster) if self._count == 1 else None
        self._pipes: list[Connection] = []
        self._workers: list[multiprocessing.process.BaseProcess] = []
        context = multiprocessing.get_context("spawn")
        for first in range(self._count if self._own is None else 0):
            ours, theirs = context.Pipe()
            worker = context.Process(target=serve, args=(theirs, model, cluster, first, self._count), daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)

    def run(self, until: float, sent: list[Sent], first: bool = False) -> list[Done]:
        """As `Fleet.run`."""
        if self._own is not None:
            return self._own.run(until, sent, first)
        for number, pipe in enumerate(self._pipes):
            part = [item for item in sent if item.replica % self._count == number]
            pipe.send_bytes(_PACKER.encode((until, part)))
        done: list[Done] = []
        for pipe in self._pipes:
            answer = self._heard(pipe)
            assert isinstance(answer, list)
            done += answer
        return done

    def loads(self) -> list[Load]:
        """What each replica has done, in order; the last call."""
        loads = {} if self._own is None else self._own.loads()
        for pipe in self._pipes:
            pipe.send_bytes(b"")
        for pipe in self._pipes:
            answer = self._heard(pipe)
            assert isinstance(answer, dict)
            loads |= answer
        return [loads[number] for number in sorted(loads)]

    @staticmethod
    def _heard(pipe: Connection) -> list[Done] | dict[int, Load]:
        try:
            answer = _ANSWERS.decode(pipe.recv_bytes())
        except EOFError:
            raise EngineError("A process of the simulation has died.") from None
        if isinstance(answer, str):
            raise EngineError(f"The simulation failed: {answer}")
        return answer

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.terminate()
            worker.join()


class Simulation:
    """One play on one cluster."""

    def __init__(self, model: EngineModel, play: Play, cluster: Cluster) -> None:
        limits = model.limits
        make: Callable[..., Router] = ROUTERS.get(cluster.router)
        self._router = make(cluster.replicas, limits.capacity, cluster.seed)
        self._play = play
        self._cluster = cluster
        self._vocab = vocabulary(limits)
        self._fleets = Fleets(model, cluster)
        self._loads = np.zeros(cluster.replicas, np.int64)
        self._open: dict[int, tuple[Asked, int]] = {}
        self.ideal = Ideal(limits.page_size) if cluster.best else None
        self.answered: list[Asked] = []

    def run(self) -> list[Load]:
        """Play it to its end. → what each replica did"""
        with contextlib.closing(self._fleets):
            if self._cluster.replicas == 1:
                self._by_event()
            else:
                self._by_window()
            return self._fleets.loads()

    def _by_event(self) -> None:
        """Up to the next arrival that is known, or to the first answer, from which another may follow."""
        while not self._play.done:
            due = self._play.next_time
            done = self._fleets.run(math.inf if due is None else due, [], first=True)
            if done:
                self._hear(done)
            elif due is not None:
                self._fleets.run(-math.inf, self._send(due, 0.0))

    def _by_window(self) -> None:
        now = 0.0
        while not self._play.done:
            due = self._play.next_time
            if not self._open and due is not None:
                now = max(now, due)
            until = now + self._cluster.window
            self._hear(self._fleets.run(until, self._send(until, now)))
            now = until

    def _send(self, until: float, earliest: float) -> list[Sent]:
        out = []
        for asked in self._play.due(until):
            asked.due = max(asked.due, earliest)
            texts = tuple(piece for piece in asked.pieces if isinstance(piece, Text))
            asked.prompt_tokens = sum(text.length for text in texts)
            if self.ideal is not None:
                asked.possible_tokens = self.ideal.sent(content(texts, self._vocab))
            replica = self._router.choose([((t.key, t.start), t.length) for t in texts], self._loads)
            self._loads[replica] += 1
            self._open[asked.id] = (asked, replica)
            out.append(Sent(replica, asked.id, asked.due, texts, asked.output, answer_key(0, asked.id)))
        return out

    def _hear(self, done: list[Done]) -> None:
        for item in sorted(done, key=lambda d: (d.ended, d.id)):
            asked, replica = self._open.pop(item.id)
            self._loads[replica] -= 1
            asked.first, asked.ended, asked.cached_tokens = item.first, item.ended, item.cached_tokens
            said = Text(answer_key(0, asked.id), asked.output, asked.prompt_tokens)
            if self.ideal is not None:
                texts = [piece for piece in asked.pieces if isinstance(piece, Text)]
                self.ideal.said(content(texts, self._vocab), content([said], self._vocab))
            self._play.answered(asked, said)
            self.answered.append(asked)
