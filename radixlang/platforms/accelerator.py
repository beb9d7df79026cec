"""GPUs and other accelerators through `torch.accelerator`: the current stream, events, pinned host copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class _Failed:
    """Work that raised when it was submitted."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> Any:
        raise self._error


class _Recorded:
    """A value whose copies home are complete once `event` has passed; the event then goes to the `spare` ones."""

    def __init__(self, value: Any, event: torch.Event, spare: list[torch.Event]) -> None:
        self._value, self._spare = value, spare
        self._event: torch.Event | None = event

    def wait(self) -> Any:
        if self._event is not None:
            self._event.synchronize()
            self._spare.append(self._event)
            self._event = None
        return self._value


class AcceleratorPlatform:
    """Work is issued at once from the calling thread and runs in order on the device's current stream.

    The default stream is enough: weights, caches and steps are all made on it, so nothing needs a fence.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        if self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)
        self._pins = self.device.type in ("cuda", "xpu")
        self._side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        """copies large inputs while the stream computes"""
        self._events: list[torch.Event] = []
        """have passed and been waited for: making one for every step takes longer than recording it"""

    def describe(self) -> str:
        module = getattr(torch, self.device.type, None)
        name = getattr(module, "get_device_name", None)
        return str(name(self.device)) if name else self.device.type

    def total_memory(self) -> int:
        return int(torch.accelerator.get_memory_info(self.device.index)[1])

    def free_memory(self) -> int:
        torch.accelerator.empty_cache()
        return int(torch.accelerator.get_memory_info(self.device.index)[0])

    def default_dtype(self, checkpoint: str) -> torch.dtype:
        """The checkpoint's own."""
        return getattr(torch, checkpoint)

    def submit(self, work: Callable[[], Any]) -> _Recorded | _Failed:
        try:
            value = work()
            event = self._events.pop() if self._events else torch.Event(self.device)
            event.record(torch.accelerator.current_stream())
        except Exception as error:
            return _Failed(error)
        return _Recorded(value, event, self._events)

    def host_rows(self, rows: int, width: int) -> np.ndarray:
        return torch.empty((rows, width), dtype=torch.int32, pin_memory=self._pins).numpy()

    def upload(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._pins:
            # torch keeps the pinned block until the copy has passed the stream.
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def upload_beside(self, array: np.ndarray) -> torch.Tensor:
        if self._side is None:
            return self.upload(array)
        host, stream = torch.from_numpy(array), torch.cuda.current_stream()
        host = host if host.is_pinned() else host.pin_memory()
        with torch.cuda.stream(self._side):
            tensor = host.to(self.device, non_blocking=True)
        stream.wait_stream(self._side)
        tensor.record_stream(stream)  # its memory is the other stream's, which would use it again too early
        return tensor

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._pins:
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def mark(self, part: str) -> None:
        """Nobody records."""

    def close(self) -> None:
        torch.accelerator.synchronize(self.device.index)
