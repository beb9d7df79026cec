"""Several ranks as threads of this process, each with its own Gloo group object."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from radixlang.parallel import TensorParallel, connect

T = TypeVar("T")


def as_ranks(size: int, folder: Path, body: Callable[[TensorParallel], T]) -> list[T]:
    """What `body` returns on each rank."""

    def run(rank: int) -> Any:
        return body(connect(rank, size, str(folder / "ranks"), torch.device("cpu")))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
