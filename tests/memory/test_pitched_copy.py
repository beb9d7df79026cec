"""Rows that do not touch each other: what the driver is told, and on a GPU what it does."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixlang.memory import pitched_copy


def test_what_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that copies by the order's numbers alone."""
    orders = []

    def copy(order: Any, stream: int) -> int:
        told = order._obj
        orders.append(stream)
        for row in range(told.height):
            ctypes.memmove(
                told.dst_device + row * told.dst_pitch, told.src_host + row * told.src_pitch, told.width
            )
        return 0 if told.width < 100 else 1

    monkeypatch.setattr(pitched_copy, "_driver", lambda: SimpleNamespace(cuMemcpy2DAsync_v2=copy))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    source = torch.arange(200, dtype=torch.uint8).view(10, 20)
    target = torch.zeros(3, 6, dtype=torch.uint8)
    pitched_copy.copy_rows(target, source[4:7, 10:16])
    assert torch.equal(target, source[4:7, 10:16])
    assert orders == [7]
    pitched_copy.copy_rows(target[:1], source[2:3, :6])  # one row touches no other
    pitched_copy.copy_rows(target[1:].view(2, 6), torch.full((2, 6), 9, dtype=torch.uint8))
    assert target.tolist() == [source[2, :6].tolist(), [9] * 6, [9] * 6]
    assert orders == [7]
    wide = torch.zeros(2, 300, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="2 rows of 150 bytes"):
        pitched_copy.copy_rows(torch.zeros(2, 150, dtype=torch.uint8), wide[:, :150])


def test_the_order_is_laid_out_as_in_cuda_h() -> None:
    order = pitched_copy._Copy2D
    assert ctypes.sizeof(order) == 128
    assert [order.src_host.offset, order.src_pitch.offset, order.dst_device.offset] == [24, 48, 88]
    assert [order.dst_type.offset, order.dst_pitch.offset, order.width.offset] == [72, 104, 112]


@pytest.mark.gpu
def test_the_driver_copies_rows() -> None:
    source = torch.randint(0, 255, (64, 1 << 20), dtype=torch.uint8).pin_memory()
    target = torch.zeros(50, 1 << 17, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        pitched_copy.copy_rows(target, source[7:57, 1 << 18 : 3 << 17])
    stream.synchronize()
    assert torch.equal(target.cpu(), source[7:57, 1 << 18 : 3 << 17])
