"""What every Triton kernel of this package computes, in plain torch, written to be read and not to be fast.

The kernels' tests compare against these. Must not import Triton.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from radixlang.kernels.automaton_tables import ENDED, Tables
from radixlang.kernels.edit_words import END, PROMPT, TIMES
from radixlang.kernels.tree_work import ITEM, SLOTS, TreeWork

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Twin of `decode_attention` and `extend_attention`; float32 inside. Tokens of no row give zeros."""
    heads = q.shape[1]
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    out = torch.zeros_like(q)
    for b, row in enumerate(rows.tolist()):
        first, last, length = int(query_starts[b]), int(query_starts[b + 1]), int(lengths[b])
        if length == 0 or first == last:
            continue
        pages = page_table[row, : -(-length // page_size)].long()
        k = k_cache[pages].flatten(0, 1)[:length].float().repeat_interleave(heads // kv_heads, 1)
        v = v_cache[pages].flatten(0, 1)[:length].float().repeat_interleave(heads // kv_heads, 1)
        score = torch.einsum("qhd,khd->hqk", q[first:last].float(), k) * scale
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        query = torch.arange(length - (last - first), length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None, :]
        hidden = key > query
        if window:
            hidden |= key <= query - window
        score = score.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            extra = sinks.float()[:, None, None].expand(-1, last - first, 1)
            weight = torch.cat([score, extra], -1).softmax(-1)[..., :-1]
        else:
            weight = score.softmax(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weight, v).to(q.dtype)
    return out


def tree_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    work: TreeWork,
    *,
    scale: float,
    softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Twin of `tree_attention.tree_attention` → (partial, lse); NaN in slots that nothing is written to."""
    tokens, heads, dim = q.shape
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    partial = torch.full((tokens, heads, SLOTS, dim), float("nan"), device=q.device)
    lse = torch.full((tokens, heads, SLOTS), float("nan"), device=q.device)
    for first, size, row, slot, start, end in work.items.view(-1, ITEM)[: int(work.number)].tolist():
        keys = torch.arange(start, end, device=q.device)
        pages = page_table[row].long()[keys // page_size]
        k = k_cache[pages, keys % page_size].float().repeat_interleave(heads // kv_heads, 1)
        v = v_cache[pages, keys % page_size].float().repeat_interleave(heads // kv_heads, 1)
        rows = work.order[first : first + size].long()
        score = torch.einsum("qhd,khd->qhk", q[rows].float(), k) * scale
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        partial[rows, :, slot] = torch.einsum("qhk,khd->qhd", score.softmax(-1), v)
        lse[rows, :, slot] = score.logsumexp(-1) / math.log(2)
    return partial, lse


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_offset: float = 0.0) -> torch.Tensor:
    """Twin of `norm.rms_norm`."""
    x32 = x.float()
    inverse = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return (x32 * inverse * (weight.float() + weight_offset)).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Twin of `norm.add_rms_norm`."""
    total = (x.float() + residual.float()).to(x.dtype)
    return rms_norm(total, weight, eps, weight_offset=weight_offset), total


def rope_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """Twin of `rope_write.rope_write`."""
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    c, s = cos.float()[:, None], sin.float()[:, None]
    half = cos.shape[1]

    def prepare(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        x32 = x.float()
        if weight is not None:
            x32 = rms_norm(x32, weight, eps, weight_offset=weight_offset)
        a, b, rest = x32[..., :half], x32[..., half : 2 * half], x32[..., 2 * half :]
        return torch.cat([a * c - b * s, b * c + a * s, rest], -1)

    page, within = slots // k_cache.shape[1], slots % k_cache.shape[1]
    k_cache[page, within] = prepare(k, k_weight).to(k_cache.dtype)
    v_cache[page, within] = v.to(v_cache.dtype)
    return prepare(q, q_weight).to(q.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Twin of `activation.silu_mul`."""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Twin of `activation.gelu_tanh_mul`."""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


def copy_pages(caches: list[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Twin of `page_copy.copy_pages`."""
    for cache in caches:
        cache[targets.long()] = cache[sources.long()]


def gather_pages(caches: list[torch.Tensor], pages: torch.Tensor, blocks: torch.Tensor) -> None:
    """Twin of `page_blocks.gather_pages`."""
    parts = blocks[: len(pages)].view(len(pages), len(caches), -1)
    for part, cache in enumerate(caches):
        parts[:, part] = cache.view(len(cache), -1).view(torch.uint8)[pages.long()]


def scatter_pages(caches: list[torch.Tensor], pages: torch.Tensor, blocks: torch.Tensor) -> None:
    """Twin of `page_blocks.scatter_pages`."""
    parts = blocks[: len(pages)].view(len(pages), len(caches), -1)
    for part, cache in enumerate(caches):
        cache.view(len(cache), -1).view(torch.uint8)[pages.long()] = parts[:, part]


def uniform(seed: int, drawn: int) -> float:
    """The number in [0, 1) that a row draws with: 24 bits of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = (seed + _GOLDEN) & _MASK64
    for addend in (0, drawn * _GOLDEN):
        x = (x + addend) & _MASK64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
        x ^= x >> 31
    return (x >> 40) / (1 << 24)


def kept_probabilities(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """Distribution a row [V] is drawn from, float64: zero where a limit dropped the token."""
    p = (logits.double() / temperature).softmax(-1)
    ordered, ids = p.sort(descending=True, stable=True)
    kept = ordered > 0
    if 0 < top_k < p.shape[0]:
        kept[top_k:] = False
    if top_p < 1.0:
        kept &= (ordered.cumsum(-1) - ordered) < top_p
    if min_p > 0.0:
        kept &= ordered >= min_p * ordered[0]
    kept[0] = True
    result = torch.zeros_like(p)
    result[ids[kept]] = ordered[kept]
    return result / result.sum()


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    drawn: torch.Tensor,
) -> torch.Tensor:
    """Twin of `sampling.sample`."""
    tokens = []
    for b, row in enumerate(logits.float()):
        if float(temperature[b]) < 1e-6 or not bool((row > float("-inf")).any()):
            tokens.append(int(argmax(row[None])))
            continue
        row = row.nan_to_num(nan=float("-inf"), posinf=3.0e38, neginf=float("-inf"))
        p = kept_probabilities(row, float(temperature[b]), int(top_k[b]), float(top_p[b]), float(min_p[b]))
        target = uniform(int(seeds[b]), int(drawn[b]))
        hit = ((p.cumsum(-1) > target) & (p > 0)).nonzero()
        tokens.append(int(hit[0]) if len(hit) else int(p.nonzero()[-1]))
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Twin of `sampling.argmax`."""
    x = logits.float().nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    return (x == x.max(-1, keepdim=True).values).int().argmax(-1)


def edit(
    logits: torch.Tensor,
    words: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    frequency: float = 0.0,
    presence: float = 0.0,
    repetition: float = 1.0,
    early: bool = False,
) -> torch.Tensor:
    """Twin of `edits.edit`: a row's changed logits [V], float32; `words` int16 [V] as in `edit_words`."""
    times = (words & TIMES).float()
    x = logits.float() - frequency * times - presence * (times > 0)
    repeated = torch.where(x > 0, x / repetition, x * repetition)
    x = torch.where((words & (TIMES | PROMPT)) != 0, repeated, x)
    if bias is not None:
        x = x + bias
    return x.masked_fill((words & END) != 0, float("-inf")) if early else x


def apply_bitmask(logits: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> None:
    """Twin of `bitmask.apply_bitmask`."""
    vocab = logits.shape[1]
    bits = ((mask[:, :, None] >> torch.arange(32, device=mask.device, dtype=torch.int32)) & 1).flatten(1)
    allowed = F.pad(bits, (0, max(0, vocab - bits.shape[1])))[:, :vocab] == 1
    where, allowed = index[index >= 0].long(), allowed[index >= 0]
    logits[where] = logits[where].masked_fill(~allowed, float("-inf"))


def mask_logits(
    logits: torch.Tensor, rows: torch.Tensor, tables: Tables, drawn: torch.Tensor | None = None
) -> None:
    """Twin of `automaton.mask_logits`."""
    state = tables.state[rows.long()]
    held = state >= 0 if drawn is None else (state >= 0) & (drawn >= 0)
    index = held.nonzero()[:, 0]
    apply_bitmask(logits, index, tables.masks[tables.mask_row[state[index].long()].long()])


def advance(
    tokens: torch.Tensor,
    rows: torch.Tensor,
    flags: torch.Tensor,
    tables: Tables,
    drawn: torch.Tensor | None = None,
) -> None:
    """Twin of `automaton.advance`."""
    for b, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
        state = int(tables.state[row])
        if state < 0 or (drawn is not None and int(drawn[b]) < 0):
            continue
        first = state // tables.span * tables.span
        last = int(tables.last[state])
        known = 0 <= token < len(tables.ends) - 1
        data = tables.letters[int(tables.ends[token]) : int(tables.ends[token + 1])].tolist() if known else []
        here = state - first if data else last
        for byte in data:
            here = int(tables.next_byte[first + here, byte])
            if here < 0:
                here = last
                break
        tables.state[row] = first + here
        if tables.closed[first + here]:
            flags[b] |= ENDED


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Twin of `skinny_linear.skinny_linear`, without the in-place sum."""
    y = x.float() @ weight.float().T
    if bias is not None:
        y = y + bias.float()
    if activation:
        gate, up = y.chunk(2, -1)
        y = (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
    if residual is not None:
        y = y + residual.float()
    return y.to(x.dtype)


def begin_norm(x: torch.Tensor, norm: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Twin of what `skinny_linear.skinny_add` leaves of the RMSNorm of x [T, N]: x * norm, and of each token the
    sums of squares of x over blocks of N [blocks, T]."""
    squares = F.pad(x.float().square(), (0, -x.shape[1] % block)).unflatten(1, (-1, block)).sum(-1).T
    return (x.float() * norm).to(x.dtype), squares


def rotary_angles(
    positions: torch.Tensor, inverse: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Twin of `rope_write.rotary_angles`."""
    angles = positions[:, None].float() * inverse
    return angles.cos() * factor, angles.sin() * factor
