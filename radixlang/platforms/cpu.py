"""The CPU: its in-order stream is one worker thread (torch lets other threads run while it computes)."""

from __future__ import annotations

import os
import platform as host
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class CpuFacts:
    """Instruction sets that decide which arithmetic is fast."""

    avx2: bool
    avx512: bool
    bf16: bool
    """native bfloat16 products (AVX512-BF16 or AMX); without them bfloat16 is slower than float32"""
    vnni: bool
    """8-bit integer dot products"""


def cpu_facts() -> CpuFacts:
    """What this CPU offers, as torch sees it (all False on other architectures than x86)."""
    probe = torch.cpu
    names = ("_is_avx2_supported", "_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported")
    avx2, avx512, bf16, amx = (bool(getattr(probe, name, lambda: False)()) for name in names)
    vnni = bool(getattr(probe, "_is_vnni_supported", lambda: False)())
    return CpuFacts(avx2=avx2, avx512=avx512, bf16=bf16 or amx, vnni=vnni)


def _read_bytes(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _cgroup_limit() -> tuple[int, int] | None:
    """(limit, in use) in bytes of the container this process is in, where there is one."""
    for folder, limit_name, used_name in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = _read_bytes(f"{folder}/{limit_name}"), _read_bytes(f"{folder}/{used_name}")
        if limit is not None and used is not None:
            return limit, used
    return None


def _system_memory() -> tuple[int, int]:
    """(total, available) bytes of the machine."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemTotal"].split()[0]) * 1024, int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total // 2


def free_host_memory() -> int:
    """Bytes of memory that can still be taken, within the container that this process is in."""
    available = _system_memory()[1]
    group = _cgroup_limit()
    return min(available, max(group[0] - group[1], 0)) if group else available


class _Task:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def wait(self) -> Any:
        return self._future.result()


class CpuPlatform:
    """Runs submitted work on a thread of its own, in order. `num_threads` is torch's, None leaves it alone."""

    def __init__(self, num_threads: int | None = None) -> None:
        self.device = torch.device("cpu")
        if num_threads:
            torch.set_num_threads(num_threads)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="device")

    def describe(self) -> str:
        facts = cpu_facts()
        names = [name for name in ("avx2", "avx512", "bf16", "vnni") if getattr(facts, name)]
        kinds = f" ({', '.join(names)})" if names else ""
        return f"{host.machine()} CPU{kinds}, {torch.get_num_threads()} threads"

    def total_memory(self) -> int:
        total = _system_memory()[0]
        group = _cgroup_limit()
        return min(total, group[0]) if group else total

    def free_memory(self) -> int:
        return free_host_memory()

    def default_dtype(self, checkpoint: str) -> torch.dtype:
        """float32: exact, and the fastest without native bfloat16; packed copies are the weights' business."""
        return torch.float32

    def submit(self, work: Callable[[], Any]) -> _Task:
        return _Task(self._worker.submit(work))

    def host_rows(self, rows: int, width: int) -> np.ndarray:
        return np.empty((rows, width), np.int32)

    def upload(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array)

    def upload_beside(self, array: np.ndarray) -> torch.Tensor:
        return self.upload(array)

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def mark(self, part: str) -> None:
        """Nobody records."""

    def close(self) -> None:
        self._worker.shutdown(wait=True)
