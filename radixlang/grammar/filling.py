"""Masks of many states at once.

Python runs in one thread at a time, so threads that fill masks mostly wait for each other. A state therefore fills
its mask as a generator: where the work is a library's or compiled code's, it yields a `Job` and goes on once that
is done. One thread drives the generators of all states, and what they have asked for is then done side by side.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_CPUS = os.cpu_count() or 1
THREADS = min(16, _CPUS - _CPUS // 4)
"""most threads that work on masks; some processors are left to the other processes"""
CHUNK = 28
"""states that are driven together"""
ALONE = 2
"""so few jobs are not worth handing to other threads"""


class Job(Protocol):
    """Work without Python. What goes wrong in it is raised by the state that asked for it."""

    def run(self) -> None:
        """In this thread."""
        ...

    @classmethod
    def run_all(cls, jobs: Sequence[Any]) -> None:
        """Jobs of this kind, by all threads."""
        ...


Filling = Generator[Job, None, T]
"""Yields what it needs done; returns a T."""


def alone(filling: Filling[T]) -> T:
    """Drive one to its end."""
    try:
        while True:
            next(filling).run()
    except StopIteration as end:
        result: T = end.value
        return result


def together(fillings: Sequence[Filling[None]]) -> dict[int, BaseException]:
    """Drive all to their ends → what those that failed raised, by their indexes.

    Some at a time: while the jobs of some are done, others are driven.
    """
    failed: dict[int, BaseException] = {}
    many = THREADS > 1 and len(fillings) > CHUNK
    todo = list(enumerate(fillings))
    # what is being done, and whose fillings wait for it
    begun: deque[tuple[Future[None] | None, list[tuple[int, Filling[None]]]]] = deque()
    begun.extend((None, todo[at : at + CHUNK]) for at in range(0, len(todo), CHUNK))
    while begun:
        done, chunk = begun.popleft()
        if done is not None:
            done.result()
        waiting, jobs = [], []
        for at, filling in chunk:
            try:
                jobs.append(next(filling))
                waiting.append((at, filling))
            except StopIteration:
                pass
            except BaseException as error:  # a library's panic is no Exception
                failed[at] = error
        if not waiting:
            continue
        if many and len(jobs) > ALONE:
            begun.append((_runner().submit(_run, jobs), waiting))
        else:
            _run(jobs)
            begun.append((None, waiting))
    return failed


def _run(jobs: list[Job]) -> None:
    kinds: dict[type[Job], list[Job]] = {}
    for job in jobs:
        kinds.setdefault(type(job), []).append(job)
    for kind, same in kinds.items():
        if len(same) <= ALONE or THREADS == 1:
            for job in same:
                job.run()
        else:
            kind.run_all(same)


def in_threads(jobs: Sequence[Job]) -> None:
    """`Job.run_all` of jobs that let other threads run."""
    left = iter(jobs)  # `next` on it is one step of the interpreter

    def some() -> None:
        for job in left:
            job.run()

    others = [_pool().submit(some) for _ in range(min(THREADS, len(jobs)) - 1)]
    some()
    for other in others:
        other.result()


def later(work: Callable[[], None]) -> None:
    """Do something in another thread that nobody waits for."""
    _pool().submit(work)


@lru_cache(1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="masks")


@lru_cache(1)
def _runner() -> ThreadPoolExecutor:
    """Waits for jobs in the place of the thread that drives."""
    return ThreadPoolExecutor(1, thread_name_prefix="mask jobs")
