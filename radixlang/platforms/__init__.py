"""What differs between devices: memory, the in-order stream, host copies, the default dtype.

One small class per platform; everything else of the device column is written against `Platform`. Must not
know plans, models or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from radixlang.errors import ConfigError


class Pending(Protocol):
    """Work that was put on the stream."""

    def wait(self) -> Any:
        """Block until the work and its copies home are done. Returns its value or raises its exception."""
        ...


class Platform(Protocol):
    """A device and its one in-order stream."""

    device: torch.device

    def describe(self) -> str:
        """The device's name, for people."""
        ...

    def total_memory(self) -> int:
        """Bytes of memory the device has."""
        ...

    def free_memory(self) -> int:
        """Bytes that can still be allocated."""
        ...

    def default_dtype(self, checkpoint: str) -> torch.dtype:
        """What `--dtype auto` means for a checkpoint saved in the named dtype."""
        ...

    def submit(self, work: Callable[[], Any]) -> Pending:
        """Put `work` behind everything submitted before. Does not wait for the device."""
        ...

    def host_rows(self, rows: int, width: int) -> np.ndarray:
        """An int32 array [rows, width], not initialised, from which `upload_beside` copies fastest. It may be
        written to again when the work that uploaded it has been waited for."""
        ...

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """Copy (or share) a host array; only inside submitted work."""
        ...

    def upload_beside(self, array: np.ndarray) -> torch.Tensor:
        """As `upload`, but the copy need not wait for what the stream does now; what comes next waits for it."""
        ...

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin the copy to the host; its values are valid after the work's `wait`."""
        ...

    def mark(self, part: str) -> None:
        """Inside submitted work: what was put on the stream since the last mark was `part`. Does nothing, unless
        the platform stands behind a `RecordingPlatform`."""
        ...

    def close(self) -> None:
        """Finish what is submitted and release the stream."""
        ...


def place_rank(device: str, num_threads: int | None, rank: int, ranks: int) -> tuple[str, int | None]:
    """`--device` and `--threads` as rank `rank` of `ranks` takes them: a device of its own, counted from the named
    one, or on a CPU its share of the cores.

    Raises:
        ConfigError: there are fewer devices than ranks.
    """
    if ranks == 1:
        return device, num_threads
    found = torch.accelerator.current_accelerator(check_available=True)
    kind, _, index = device.partition(":")
    if kind == "auto":
        kind = "cpu" if found is None else found.type
    if found is None or kind != found.type:  # the CPU, or a device that `find_platform` will refuse
        return device, num_threads or max(1, torch.get_num_threads() // ranks)
    first = int(index or 0)
    devices = torch.accelerator.device_count()
    if first + ranks > devices:
        have = f"there are {devices}" if first == 0 else f"there are {max(devices - first, 0)} from {device} on"
        raise ConfigError(f"--tp-size {ranks} needs {ranks} {kind} devices, but {have}; lower --tp-size.")
    return f"{kind}:{first + rank}", num_threads


def find_platform(device: str = "auto", num_threads: int | None = None) -> Platform:
    """The platform of a `--device` value: "auto" takes the accelerator torch finds, else the CPU.

    Raises:
        ConfigError: torch cannot use the named device here.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    accelerator = found.type if found is not None else None
    kind = (accelerator or "cpu") if device == "auto" else device.split(":")[0]
    if kind == "cpu":
        from radixlang.platforms.cpu import CpuPlatform

        return CpuPlatform(num_threads)
    if kind != accelerator:
        here = f"torch finds only {accelerator} and cpu" if accelerator else "torch finds only the cpu"
        raise ConfigError(f"--device {device} cannot be used: {here} on this machine.")
    index, devices = device.partition(":")[2], torch.accelerator.device_count()
    if index and int(index) >= devices:
        raise ConfigError(f"--device {device} cannot be used: {kind} devices here are 0 to {devices - 1}.")
    from radixlang.platforms.accelerator import AcceleratorPlatform

    return AcceleratorPlatform(device if ":" in device else kind)
