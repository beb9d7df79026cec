"""`ForwardBatch` and the forward context: what a model sees of a step.

The executor builds the batch from a plan; layers read it through `current()`, the package's one global, set
by a `with` around the forward pass. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from radixlang.attention import AttentionBackend
    from radixlang.kernels.tree_work import TreeWork


@dataclass
class ForwardBatch:
    """T new tokens of B rows, row after row. Tensors live on the device; ints are known to the host.

    `page_table` [table_rows, max_pages] int32 is the whole request table's; `rows` [B] index it.
    """

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    slots: torch.Tensor
    """[T] int64: page * page_size + offset where this token's K and V are written"""
    rows: torch.Tensor
    """[B] int32"""
    query_starts: torch.Tensor
    """[B + 1] int32: prefix sums of the rows' new tokens"""
    lengths: torch.Tensor
    """[B] int32: tokens of the row including the new ones (0 for a padded row)"""
    page_table: torch.Tensor
    page_size: int
    max_query: int
    """largest number of new tokens of a row; 1 means a pure decode step"""
    max_length: int
    """largest entry of `lengths`"""
    separate: bool = False
    """no row reads what another row of this step writes. Not so when a prompt's last tokens are computed beside a
    request that already shares them"""
    tree: TreeWork | None = None
    """which rows share which part of their prefixes, where their backend shall read it once for all; for steps of
    one token a row. A part's keys come before every one of its rows' new tokens"""
    wanted: torch.Tensor | None = None
    """[S] int64: the only tokens whose hidden states are asked for, S < T, in order; a model may give those alone.
    None: all T"""

    @property
    def size(self) -> int:
        return int(self.rows.shape[0])


class KvLayers(Protocol):
    """A sequence of pairs (k_cache, v_cache), each [num_pages, page_size, kv_heads, head_dim].

    A forward pass takes each layer's pair once, in order, and not before that layer: taking it is what orders the
    kernels that follow behind copies to that layer's pages.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, layer: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]: ...


@dataclass
class ForwardContext:
    """Everything a layer may need besides its input. `kv[layer]` are its caches; `plan` is what the attention
    backend made of the batch."""

    batch: ForwardBatch
    attention: AttentionBackend
    plan: Any
    kv: KvLayers


_current: ContextVar[ForwardContext | None] = ContextVar("radixlang_forward", default=None)


def current() -> ForwardContext:
    """The context of the running forward pass; only valid inside `with forwarding(...)`."""
    context = _current.get()
    assert context is not None, "no forward pass is running"
    return context


@contextmanager
def forwarding(context: ForwardContext) -> Iterator[ForwardContext]:
    """Make `context` current. Never nested."""
    assert _current.get() is None, "forward passes do not nest"
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
