"""Compiles kernels side by side instead of each at its first launch, which is most of a cold start.

First the work is done without the kernels that are not compiled yet, which are noted; then these are compiled in
threads (the compiler works outside of Python's lock); then the work is done for real. Must not know which kernels
there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from triton import knobs

from radixlang.kernels.tuning import interpreted
from radixlang.log import get_logger

log = get_logger(__name__)

MAX_THREADS = 16


def compiled_ahead(device: torch.device, work: Callable[[], None]) -> None:
    """Do `work` on a device of Triton's, its kernels compiled side by side. It must bear to be done twice, and the
    first time that kernels leave their outputs as they were."""
    if device.type != "cpu" and not interpreted():
        with Ahead() as ahead:
            try:
                work()
            except Exception as error:  # it works on rubbish; what is wrong shows the second time
                log.debug("work without kernels: %s", error)
        ahead.compile()
    work()


class Ahead:
    """Inside the `with`, launches of kernels that are not compiled yet are left out and noted."""

    def __init__(self) -> None:
        self._noted: dict[Any, tuple[Any, str]] = {}
        """by kernel and its specialisation: the function, and what Triton says of the variant"""
        self._before: Any = None

    def __enter__(self) -> Ahead:
        self._before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, self._note
        return self

    def __exit__(self, *exception: object) -> None:
        knobs.runtime.jit_cache_hook = self._before

    def _note(self, *, key: Any, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Triton's question before it compiles; True: the launch is left out."""
        self._noted[fn.module, fn.name, str(key)] = fn.jit_function, compile["specialization_data"]
        return True

    def compile(self) -> int:
        """Compile, or load from Triton's cache on disk, what was noted. → how many kernels

        What fails here fails again, and is told, where it is launched.
        """
        device = torch.cuda.current_device()

        def one(noted: tuple[Any, str]) -> None:
            torch.cuda.set_device(device)  # the current device belongs to a thread
            function, data = noted
            try:
                function.preload(data)
            except Exception as error:
                log.debug("%s was not compiled ahead: %s", function, error)

        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
            list(pool.map(one, self._noted.values()))
        return len(self._noted)
