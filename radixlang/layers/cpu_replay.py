"""Steps of the CPU as recordings: all kernels of the layers are noted, then run in one go.

Those of a decode step are kept for each number of rows and rerun; those of other steps are noted anew each
time, which still is quicker than to run them one by one: Python is slow when the kernels have emptied the caches,
and the other threads wait for it.

A small model's step is some three hundred kernels of a few microseconds; calling each from Python takes longer
than running them. A recording is made only if every operation of the layers is a kernel of this package: the
torch operations that compute are seen, and the model then runs as written. Must not know models.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
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
_KEPT = 32 << 20
"""float32 of memory kept for steps that are noted anew"""


class _Watch(TorchDispatchMode):
    """Sees the torch operations that do more than look at a tensor in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would load its compiler, which takes seconds, to say that it is not to compile this."""
        return False

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
        self._possible = available()
        self._once_possible: dict[tuple[int, int, bool], bool] = {}
        self._arena = pool.Arena(_KEPT)

    def run(
        self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch
    ) -> torch.Tensor:
        """`body(stream, rotations, batch)`; the result of a decode step lasts until the next one."""
        if batch.max_query != 1:
            return self.once(body, stream, rotations, batch)
        if not available():
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

    def once(
        self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch
    ) -> torch.Tensor:
        """`body(stream, rotations, batch)`, noted anew."""
        # What a layer calls may depend on whether there is one row of something or several.
        wanted = -1 if batch.wanted is None else min(len(batch.wanted), 2)
        key = (min(len(stream), 2), wanted, bool((batch.query_starts.diff() == 1).any()))
        if not self._once_possible.get(key, available()):
            return body(stream, rotations, batch)
        watch = None if key in self._once_possible else _Watch()
        # The body may add to the stream in place: what it was is needed if the recording is not complete.
        given = stream.clone() if watch is not None else stream
        with pool.recording(self._arena) as recording, watch or nullcontext():
            result = body(stream, rotations, batch)
        self._once_possible[key] = watch is None or not watch.computed
        if not self._once_possible[key]:
            return body(given, rotations, batch)
        recording.run()
        return result
