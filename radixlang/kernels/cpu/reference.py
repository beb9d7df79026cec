"""Plain-torch twins of the CPU kernels: what they must compute, and what runs where numba is missing.

Knows nothing of threads, packed layouts or models. Shapes: B rows, T tokens, H query heads, G key/value
heads, D head size, K inputs, N outputs. Cache: `[pages, page_size, G, D]`.
"""

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """`x / sqrt(mean(x²) + eps) · (offset + weight)` over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (weight + offset)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding by halves: x [T, heads, D], cos and sin [T, R/2]; dimensions past R pass through."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[:, None], sin[:, None]
    return torch.cat((first * c - second * s, second * c + first * s, rest), -1)


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """`act(gate) · up` of `[T, 2·I]` (gate first) → `[T, I]`; activation "silu", "gelu_tanh" or "gelu"."""
    gate, up = gate_up.chunk(2, -1)
    if activation == "silu":
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


def gather(cache: torch.Tensor, page_table: torch.Tensor, row: int, length: int) -> torch.Tensor:
    """The first `length` tokens of a row, contiguous: `[length, G, D]`, float32."""
    page_size = cache.shape[1]
    pages = page_table[row, : (length + page_size - 1) // page_size].long()
    return cache[pages].flatten(0, 1)[:length].float()


def extend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Causal attention of ragged rows over their pages: q `[T, H, D]` → `[T, H, D]`."""
    out = torch.empty_like(q)
    starts, totals = query_starts.tolist(), lengths.tolist()
    for i, row in enumerate(rows.tolist()):
        begin, end, length = starts[i], starts[i + 1], totals[i]
        if begin == end:
            continue
        k, v = (gather(c, page_table, row, length).permute(1, 0, 2) for c in (k_cache, v_cache))
        queries = q[begin:end].permute(1, 0, 2)
        at = torch.arange(length - (end - begin), length)[:, None]
        key = torch.arange(length)[None]
        allowed = key <= at
        if window:
            allowed &= key > at - window
        if softcap:
            repeat = q.shape[1] // k.shape[0]
            scores = queries @ k.repeat_interleave(repeat, 0).transpose(1, 2) * scale
            scores = (torch.tanh(scores / softcap) * softcap).masked_fill(~allowed, float("-inf"))
            result = torch.softmax(scores, -1) @ v.repeat_interleave(repeat, 0)
        else:
            result = F.scaled_dot_product_attention(
                queries[None], k[None], v[None], attn_mask=allowed[None, None], scale=scale, enable_gqa=True
            )[0]
        out[begin:end] = result.permute(1, 0, 2)
    return out
