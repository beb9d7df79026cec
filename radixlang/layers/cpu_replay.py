"""Decode steps of the CPU as recordings: the layers' kernels are noted once for each number of rows, then rerun.

A small model's step is some three hundred kernels of a few microseconds; calling each from Python takes longer
than running them. A recording is made only if every operation of the layers is a kernel of this package: the
torch operations that compute are seen, and the model then runs as written. Must not know models.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from radixlang.forward import current
from radixlang.kernels.cpu import available, pool

if TYPE_CHECKING:
    from radixlang.forward import ForwardBatch
    from radixlang.layers.ops import LayersBody

MOST = 64
"""recordings kept, the last used"""


class _Watch(TorchDispatchMode):
    """Sees the torch operations that do more than look at a tensor in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # What is declared a view may copy all the same (`contiguous`, `reshape`, `flatten`): memory tells.
        if (not func.is_view and "view" not in func.name()) or not _memory(result) <= _memory((args, kwargs)):
            self.computed = True
        return result


def _memory(tree: Any) -> set[int]:
    """Where the tensors in nested tuples, lists and dicts lie."""
    return {x.untyped_storage().data_ptr() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)}


class _Replay:
    """One recording, with the tensors it reads (`inputs`) and the one it writes (`result`)."""

    def __init__(self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch) -> None:
        self.stream = stream.clone()
        self.rotations = [None if r is None else tuple(t.clone() for t in r) for r in rotations]
        self.batch = replace(
            batch, slots=batch.slots.clone(), rows=batch.rows.clone(), lengths=batch.lengths.clone()
        )
        # Every recording is watched, although it takes longer: what a layer calls may depend on the rows.
        watch = _Watch()
        with pool.recording() as self.recording, watch:
            self.result = body(self.stream, self.rotations, self.batch)
        self.complete = not watch.computed

    def run(self, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch) -> torch.Tensor:
        self.stream.copy_(stream)
        for mine, given in zip(self.rotations, rotations, strict=True):
            if mine is not None:
                for target, source in zip(mine, given, strict=True):
                    target.copy_(source)
        for name in ("slots", "rows", "lengths"):
            getattr(self.batch, name).copy_(getattr(batch, name))
        self.recording.run()
        return self.result


class Replays:
    """The recordings of one model."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Any, ...], _Replay] = OrderedDict()
        self._impossible: set[tuple[Any, ...]] = set()

    def run(
        self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch
    ) -> torch.Tensor:
        """`body(stream, rotations, batch)`; the result of a decode step lasts until the next one."""
        if batch.max_query != 1 or not available():
            return body(stream, rotations, batch)
        caches = current().kv
        key = (stream.shape[0], pool.threads(), batch.page_table.data_ptr(), caches[0][0].data_ptr(), len(caches))
        made = self._made.get(key)
        if made is None:
            if key in self._impossible:
                return body(stream, rotations, batch)
            made = _Replay(body, stream, rotations, batch)
            if not made.complete:
                self._impossible.add(key)
                return body(stream, rotations, batch)
            self._made[key] = made
            if len(self._made) > MOST:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return made.run(stream, rotations, batch)
