"""The small operations around the matrix products, fused: norms, gated activation, rotary with cache write.

At one row a torch operation costs more to start than to compute; each of these is one call. Float32 inputs with
sizes that are multiples of sixteen run compiled kernels, everything else plain torch. Must not know models.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixlang.kernels.cpu import available, pool, reference

if available():
    from radixlang.kernels.cpu import rowwise

_ALONE = 16384
"""Below this many values one thread is faster than waking the others."""


def _float_pair(eps: float, offset: float) -> np.ndarray:
    return np.array([eps, 0, offset, 0], np.float32).view(np.int64)


def _run(kernel: Callable[[], int], task: np.ndarray, rows: int, values: int) -> None:
    chunks = 1 if values < _ALONE else min(rows, 4 * pool.threads())
    task[rowwise.COUNT], task[rowwise.CHUNKS] = rows, chunks
    if rows:
        pool.run((kernel(), task, chunks))


def _plain(x: torch.Tensor) -> bool:
    return available() and x.dtype == torch.float32 and x.dim() == 2 and x.stride(1) == 1


def _norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, offset: float
) -> torch.Tensor:
    out = pool.empty(*x.shape)
    task = np.zeros(rowwise.TASK, np.int64)
    floats = _float_pair(eps, offset)
    task[rowwise.X : rowwise.OFFSET + 1] = (
        x.data_ptr(), x.stride(0) * 4, x.shape[1], out.data_ptr(), 0 if residual is None else residual.data_ptr(),
        weight.data_ptr(), floats[0], floats[1],
    )  # fmt: skip
    _run(rowwise.norm, task, x.shape[0], x.numel())
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """Root-mean-square norm of x `[T, K]`, scaled by `offset + weight` (Gemma's offset is 1) → `[T, K]`."""
    if not _plain(x) or x.shape[1] % 16 or weight.dtype != torch.float32:
        return reference.rms_norm(x, weight, eps, offset)
    return _norm(x, None, weight, eps, offset)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> torch.Tensor:
    """`residual += x` in place, then its `rms_norm`; both `[T, K]`, residual contiguous."""
    fits = _plain(x) and residual.is_contiguous() and {residual.dtype, weight.dtype} == {torch.float32}
    if not fits or x.shape[1] % 16:
        residual += x
        return reference.rms_norm(residual, weight, eps, offset)
    return _norm(x, residual, weight, eps, offset)


def gated(gate_up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """`act(gate) · up`: `[T, 2·I]`, gate first → `[T, I]`. Activations: "silu", "gelu_tanh", "gelu"."""
    size = gate_up.shape[1] // 2
    if not _plain(gate_up) or size % 16 or activation not in ("silu", "gelu_tanh"):
        return reference.gated(gate_up, activation)
    out = pool.empty(gate_up.shape[0], size)
    task = np.zeros(rowwise.TASK, np.int64)
    task[rowwise.X : rowwise.OUT + 1] = gate_up.data_ptr(), gate_up.stride(0) * 4, size, out.data_ptr()
    task[rowwise.ACTIVATION] = rowwise.SILU if activation == "silu" else rowwise.GELU_TANH
    _run(rowwise.gate, task, out.shape[0], out.numel())
    return out


def rope_and_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    heads: int,
    kv_heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> torch.Tensor:
    """Rotate q and k (after their per-head norms, if given), write k and v to the cache, return q `[T, heads, D]`.

    `qkv` float32 `[T, (heads + 2·kv_heads)·D]` is overwritten; `cos`, `sin` float32 `[positions, R/2]` for the
    first R dimensions of a head, halves convention; `positions` and `slots` `[T]` integers. Slots of one call
    differ, except that padded tokens may share the sink page, whose content nobody reads.
    """
    tokens, half = qkv.shape[0], cos.shape[1]
    size = qkv.shape[1] // (heads + 2 * kv_heads)
    positions, slots = positions.long(), slots.long()
    norms = [n for n in (q_norm, k_norm) if n is not None]
    kinds = {t.dtype for t in (k_cache, v_cache, cos, sin, *norms)}
    layout = (
        k_cache.stride() == v_cache.stride()
        and k_cache.stride(3) == 1
        and cos.stride() == sin.stride() == (half, 1)
    )
    if not _plain(qkv) or size % 16 or half % 16 or kinds != {torch.float32} or not layout:
        q, k, v = qkv.view(tokens, -1, size).split((heads, kv_heads, kv_heads), 1)
        q = q if q_norm is None else reference.rms_norm(q, q_norm, eps, offset)
        k = k if k_norm is None else reference.rms_norm(k, k_norm, eps, offset)
        c, s = cos[positions], sin[positions]
        page, at = slots // k_cache.shape[1], slots % k_cache.shape[1]
        k_cache[page, at] = reference.rotate(k, c, s).to(k_cache.dtype)
        v_cache[page, at] = v.to(v_cache.dtype)
        return reference.rotate(q, c, s)
    q = pool.empty(tokens, heads, size)
    page_stride, token_stride, head_stride, _ = k_cache.stride()
    task = np.zeros(rowwise.TASK, np.int64)
    task[rowwise.X : rowwise.OUT + 1] = qkv.data_ptr(), qkv.stride(0) * 4, size, q.data_ptr()
    task[rowwise.EPS : rowwise.OFFSET + 1] = _float_pair(eps, offset)
    task[rowwise.COS : rowwise.K_NORM + 1] = (
        cos.data_ptr(), sin.data_ptr(), half * 4, positions.data_ptr(), slots.data_ptr(), k_cache.data_ptr(),
        v_cache.data_ptr(), page_stride * 4, token_stride * 4, head_stride * 4, k_cache.shape[1], heads, kv_heads,
        half,
        0 if q_norm is None else q_norm.data_ptr(), 0 if k_norm is None else k_norm.data_ptr(),
    )  # fmt: skip
    _run(rowwise.rope, task, tokens, qkv.numel())
    return q


def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows `index` (int64) of x `[T, K]`."""
    if not _plain(x) or x.shape[1] % 16 or index.dtype != torch.int64 or not index.is_contiguous():
        return x[index]
    out = pool.empty(index.shape[0], x.shape[1])
    task = np.zeros(rowwise.TASK, np.int64)
    task[rowwise.X : rowwise.OUT + 1] = x.data_ptr(), x.stride(0) * 4, x.shape[1], out.data_ptr()
    task[rowwise.POSITIONS] = index.data_ptr()
    _run(rowwise.take, task, out.shape[0], out.numel())
    return out


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`logits.max(-1)` of `[S, V]`: values `[S]`, the first of equal places `[S]` int64; where a row has a NaN the
    value is NaN and the place means nothing."""
    if not _plain(logits) or logits.shape[1] % 16:
        values, places = logits.max(-1)
        return values, places
    values, places = torch.empty(logits.shape[0]), torch.empty(logits.shape[0], dtype=torch.int64)
    task = np.zeros(rowwise.TASK, np.int64)
    task[rowwise.X : rowwise.RESIDUAL + 1] = (
        logits.data_ptr(), logits.stride(0) * 4, logits.shape[1], places.data_ptr(), values.data_ptr(),
    )  # fmt: skip
    _run(rowwise.best, task, logits.shape[0], logits.numel())
    return values, places
