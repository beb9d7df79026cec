"""Masks of many states at once.

Python runs in one thread at a time, so threads that fill masks mostly wait for each other. A state therefore fills
its mask as a generator: where the work is a library's or compiled code's, it yields a `Job` and goes on once that
is done. One thread drives the generators of all states, and what they have asked for is then done side by side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_CPUS = os.cpu_count() or 1
THREADS = min(16, _CPUS - _CPUS // 4)
"""most threads that work on masks; some processors are left to the other processes"""
ALONE = 2
"""so few jobs are not worth handing to other threads"""


class Job(Protocol):
    """Work without Python. What it raises is the failure of the filling that asked for it."""

    def run(self) -> None:
        """In this thread."""
        ...

    @classmethod
    def run_all(cls, jobs: Sequence[Any]) -> None:
        """Jobs of this kind, by all threads. Where this raises, each is run once more by itself."""
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
    """Drive all to their ends → what those that failed raised, by their indexes."""
    failed: dict[int, BaseException] = {}
    todo = list(enumerate(fillings))
    while todo:
        waiting, jobs = [], []
        for at, filling in todo:
            try:
                jobs.append(next(filling))
                waiting.append((at, filling))
            except StopIteration:
                pass
            except BaseException as error:  # a library's panic is no Exception
                failed[at] = error
        faults = _run(jobs)
        failed |= {waiting[place][0]: error for place, error in faults.items()}
        todo = [one for place, one in enumerate(waiting) if place not in faults]
    return failed


def _run(jobs: list[Job]) -> dict[int, BaseException]:
    """→ what those that failed raised, by their places"""
    kinds: dict[type[Job], list[int]] = {}
    for place, job in enumerate(jobs):
        kinds.setdefault(type(job), []).append(place)
    faults: dict[int, BaseException] = {}
    for kind, same in kinds.items():
        if len(same) > ALONE and THREADS > 1:
            with suppress(BaseException):  # which of them is at fault shows when each runs alone
                kind.run_all([jobs[place] for place in same])
                continue
        for place in same:
            try:
                jobs[place].run()
            except BaseException as error:
                faults[place] = error
    return faults


def in_threads(jobs: Sequence[Job]) -> None:
    """`Job.run_all` of jobs that let other threads run."""
    left = iter(jobs)  # `next` on it is one step of the interpreter

    def some() -> None:
        for job in left:
            job.run()

    others = [_pool().submit(some) for _ in range(min(THREADS, len(jobs)) - 1)]
    some()
    for other in others:
        if not other.cancel():  # it has begun
            other.result()


def later(work: Callable[[], None]) -> None:
    """Do something in another thread that nobody waits for."""
    _pool().submit(work)


@lru_cache(1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="masks")
