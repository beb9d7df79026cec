"""Draws the next token from logits without sorting.

A first kernel finds each row's largest logit, several programs to a row; for greedy rows that is the token. It
also changes the logits of the rows that ask for it (`edits.py`). Then one program samples one row. Top-k and top-p
are a threshold on the logits, found by narrowing a bracket of values: every pass tries three pivots and then snaps
the bracket to logits that occur, so it ends at the exact threshold; of the logits equal to it, those of lower
token ids are kept, as many as the limits allow. The draw walks the kept mass, in token order, up to a uniform
number that depends on (seed, tokens drawn before) alone, so a row draws the same token in any batch. Must not know
requests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import begin
from radixlang.kernels.edits import Edits, count, edit, floats_at

SAMPLE_BLOCK = 4096
SAMPLE_WARPS = 16
SUMMARY_BLOCK = 2048
EDIT_BLOCK = 512
#: programs that look for the largest logit, over all rows
SUMMARY_PROGRAMS = 2048
MAX_PARTS = 64


@triton.jit
def _logits(base, values, start, vocab, BLOCK: tl.constexpr):
    """(indices, logits) of a block in float32; NaN counts as never, +inf as the largest number.

    `values` is the address of a row's changed logits, 0 if they are those at `base`.
    """
    i = start + tl.arange(0, BLOCK)
    if values != 0:
        x = tl.load(floats_at(values) + i, mask=i < vocab, other=float("-inf"))
    else:
        x = tl.load(base + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
    return i, tl.minimum(tl.where(x == x, x, float("-inf")), 3.0e38)


@triton.jit
def _mass_from(base, values, vocab, low, top, inverse, BLOCK: tl.constexpr):
    """(number, mass) of the logits > low, number of those equal to it; x weighs exp((x - top) * inverse)."""
    number = tl.zeros([BLOCK], tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    equal = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        _i, x = _logits(base, values, start, vocab, BLOCK)
        number += tl.where(x > low, 1.0, 0.0)
        mass += tl.where(x > low, tl.exp((x - top) * inverse), 0.0)
        equal += tl.where(x == low, 1.0, 0.0)
    return tl.sum(number, 0), tl.sum(mass, 0), tl.sum(equal, 0)


@triton.jit
def _uniform(seed, drawn):
    """24 random bits as a number in [0, 1): SplitMix64 (Steele, Lea and Flood 2014), fed seed and count."""
    x = seed.to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15
    for turn in tl.static_range(2):
        if turn == 1:
            x += drawn.to(tl.int64).to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        x = x ^ (x >> 31)
    return (x >> 40).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _threshold(base, values, vocab, low, top, inverse, need, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Largest logit t for which the logits ≥ t number (or weigh) at least `need`; `low` if none does.

    `low` and `top` are logits that occur. Invariant: `low` is kept, everything above `high` reaches too little.
    """
    high = top
    while low < high:
        p1 = tl.minimum(low * 0.75 + high * 0.25, high)
        p2 = tl.minimum(low * 0.5 + high * 0.5, high)
        p3 = tl.minimum(low * 0.25 + high * 0.75, high)
        # neighbouring floats have no middle
        p1 = tl.where(p1 > low, p1, high)
        p2 = tl.where(p2 >= p1, p2, p1)
        p3 = tl.where(p3 >= p2, p3, p2)
        reach1 = tl.zeros([BLOCK], tl.float32)
        reach2 = tl.zeros([BLOCK], tl.float32)
        reach3 = tl.zeros([BLOCK], tl.float32)
        up1 = tl.full([BLOCK], float("inf"), tl.float32)
        up2 = tl.full([BLOCK], float("inf"), tl.float32)
        up3 = tl.full([BLOCK], float("inf"), tl.float32)
        down1 = tl.full([BLOCK], float("-inf"), tl.float32)
        down2 = tl.full([BLOCK], float("-inf"), tl.float32)
        down3 = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            _i, x = _logits(base, values, start, vocab, BLOCK)
            if BY_MASS:
                weight = tl.exp((x - top) * inverse)
            else:
                weight = tl.full([BLOCK], 1.0, tl.float32)
            over1 = x >= p1
            over2 = x >= p2
            over3 = x >= p3
            reach1 += tl.where(over1, weight, 0.0)
            reach2 += tl.where(over2, weight, 0.0)
            reach3 += tl.where(over3, weight, 0.0)
            up1 = tl.minimum(up1, tl.where(over1, x, float("inf")))
            up2 = tl.minimum(up2, tl.where(over2, x, float("inf")))
            up3 = tl.minimum(up3, tl.where(over3, x, float("inf")))
            down1 = tl.maximum(down1, tl.where(over1, float("-inf"), x))
            down2 = tl.maximum(down2, tl.where(over2, float("-inf"), x))
            down3 = tl.maximum(down3, tl.where(over3, float("-inf"), x))
        enough1 = tl.sum(reach1, 0) >= need
        enough2 = tl.sum(reach2, 0) >= need
        enough3 = tl.sum(reach3, 0) >= need
        lowest = tl.where(enough1, tl.min(up1, 0), low)
        lowest = tl.where(enough2, tl.min(up2, 0), lowest)
        lowest = tl.where(enough3, tl.min(up3, 0), lowest)
        highest = tl.where(enough3, high, tl.max(down3, 0))
        highest = tl.where(enough2, highest, tl.max(down2, 0))
        highest = tl.where(enough1, highest, tl.max(down1, 0))
        low = lowest
        high = highest
    return low


@triton.jit(do_not_specialize=["part", "rows_ptr", "drawn_ptr", "low_ptr", "bad_ptr"])
def _summary_kernel(
    logits_ptr,
    top_ptr,
    first_ptr,
    low_ptr,
    bad_ptr,
    rows_ptr,
    drawn_ptr,
    values_ptr,
    words_ptr,
    bias_ptr,
    frequency_ptr,
    presence_ptr,
    repetition_ptr,
    least_ptr,
    stride,
    vocab,
    part,
    BLOCK: tl.constexpr,
    EDIT_BLOCK: tl.constexpr,
    INDEXED: tl.constexpr,
    EDITED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Of each part of each row: largest logit, its first index, smallest above -inf, whether NaN or +inf occur."""
    begin(CHAINED)
    row = tl.program_id(0)
    drawn = 0
    if INDEXED:
        drawn = tl.load(drawn_ptr + row)
        if drawn < 0:
            return
    at = row
    values = tl.zeros([], tl.int64)
    if EDITED:
        at = tl.load(rows_ptr + row)
        values = tl.load(values_ptr + at)
    base = logits_ptr + row.to(tl.int64) * stride
    lane = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    index = lane
    bad = tl.zeros([BLOCK], tl.int32)
    begin_at = tl.program_id(1) * part
    end = tl.minimum(begin_at + part, vocab)
    if EDITED:
        if values != 0:
            edit(
                base,
                begin_at,
                end,
                at,
                drawn,
                values,
                words_ptr,
                bias_ptr,
                frequency_ptr,
                presence_ptr,
                repetition_ptr,
                least_ptr,
                EDIT_BLOCK,
            )
    for start in range(begin_at, end, BLOCK):
        i = start + lane
        if values != 0:
            x = tl.load(floats_at(values) + i, mask=i < end, other=float("-inf"))
        else:
            x = tl.load(base + i, mask=i < end, other=float("-inf")).to(tl.float32)
        bad = tl.where((x != x) | (x == float("inf")), 1, bad)
        x = tl.minimum(tl.where(x == x, x, float("-inf")), 3.0e38)
        index = tl.where(x > most, i, index)
        most = tl.maximum(most, x)
        least = tl.minimum(least, tl.where(x == float("-inf"), float("inf"), x))
    top = tl.max(most, 0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(top_ptr + place, top)
    tl.store(first_ptr + place, tl.min(tl.where(most == top, index, vocab), 0))
    tl.store(low_ptr + place, tl.min(least, 0))
    tl.store(bad_ptr + place, tl.max(bad, 0))


@triton.jit(
    do_not_specialize=[
        "parts", "home_stride", "rows_ptr", "drawn_ptr", "out_ptr", "next_ptr", "home_ptr", "low_ptr", "bad_ptr"
    ]
)  # fmt: skip
def _sample_kernel(
    logits_ptr,
    top_ptr,
    first_ptr,
    low_ptr,
    bad_ptr,
    rows_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    drawn_ptr,
    out_ptr,
    next_ptr,
    home_ptr,
    values_ptr,
    words_ptr,
    stride,
    vocab,
    parts,
    home_stride,
    BLOCK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    INDEXED: tl.constexpr,
    EDITED: tl.constexpr,
    GREEDY: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    row = tl.program_id(0)
    if INDEXED:
        if tl.load(drawn_ptr + row) < 0:
            return
    base = logits_ptr + row.to(tl.int64) * stride
    p = tl.arange(0, BLOCK_P)
    place = row * parts + p
    tops = tl.load(top_ptr + place, mask=p < parts, other=float("-inf"))
    top = tl.max(tops, 0)
    firsts = tl.load(first_ptr + place, mask=p < parts, other=vocab)
    first = tl.min(tl.where(tops == top, firsts, vocab), 0)
    low = tl.min(tl.load(low_ptr + place, mask=p < parts, other=float("inf")), 0)
    if top == float("-inf"):
        first = 0
    token = first
    at = row
    values = tl.zeros([], tl.int64)
    if INDEXED:
        at = tl.load(rows_ptr + row)
        if EDITED:
            values = tl.load(values_ptr + at)
    if not GREEDY:
        temperature = tl.load(temperature_ptr + at)
        if (temperature >= 1e-6) & (top > float("-inf")):
            token = _draw(
                base,
                values,
                vocab,
                top,
                first,
                low,
                temperature,
                tl.load(top_k_ptr + at),
                tl.load(top_p_ptr + at),
                tl.load(min_p_ptr + at),
                _uniform(tl.load(seed_ptr + at), tl.load(drawn_ptr + row)),
                BLOCK,
            )
    tl.store(out_ptr + row, token.to(tl.int64))
    if INDEXED:
        bad = tl.max(tl.load(bad_ptr + place, mask=p < parts, other=0), 0)
        bad = tl.where(top == float("-inf"), 1, bad)
        tl.store(next_ptr + at, token.to(tl.int64))
        tl.store(home_ptr + row, token.to(tl.int32))
        tl.store(home_ptr + home_stride + row, bad)
    if EDITED:
        if values != 0:
            count(tl.load(words_ptr + at), token)


@triton.jit
def _draw(base, values, vocab, top, first, low, temperature, top_k, top_p, min_p, uniform, BLOCK: tl.constexpr):
    """The token of a row whose best logit `top` is first at `first`, and whose smallest above -inf is `low`."""
    inverse = 1.0 / temperature
    by_rank = (top_k > 0) & (top_k < vocab)
    by_mass = top_p < 1.0
    most = top_k.to(tl.float32)
    _number, mass, _equal = _mass_from(base, values, vocab, float("-inf"), top, inverse, BLOCK)
    need = top_p * mass
    if by_rank:
        low = _threshold(base, values, vocab, low, top, inverse, most, False, BLOCK)
    if by_mass:
        low = _threshold(base, values, vocab, low, top, inverse, need, True, BLOCK)
    # of the logits equal to `low`, the first `quota` are kept
    equal = 0.0
    quota = 0.0
    if by_rank | by_mass | (min_p > 0.0):
        limit = low
        if min_p > 0.0:
            low = tl.maximum(low, tl.minimum(top + temperature * tl.log(min_p), top))
        number, above, equal = _mass_from(base, values, vocab, low, top, inverse, BLOCK)
        weight_low = tl.exp((low - top) * inverse)
        quota = equal
        if low == limit:
            if by_rank:
                quota = tl.minimum(quota, most - number)
            if by_mass & (weight_low > 0.0):
                quota = tl.minimum(quota, tl.ceil((need - above) / weight_low))
            quota = tl.maximum(quota, 1.0)
        mass = above + quota * weight_low

    target = uniform * mass
    passed = 0.0
    passed_equal = 0.0
    found = vocab
    last = first
    start = 0
    while (start < vocab) & (found == vocab):
        i, x = _logits(base, values, start, vocab, BLOCK)
        kept = x >= low
        if quota < equal:
            same = tl.where(x == low, 1.0, 0.0)
            kept = (x > low) | ((x == low) & (passed_equal + tl.cumsum(same, 0) <= quota))
            passed_equal += tl.sum(same, 0)
        weight = tl.where(kept, tl.exp((x - top) * inverse), 0.0)
        kept = weight > 0.0
        here = tl.sum(weight, 0)
        if passed + here > target:
            hit = kept & (passed + tl.cumsum(weight, 0) > target)
            found = tl.min(tl.where(hit, i, vocab), 0)
        # rounding may leave the target beyond the last kept token: then that one is drawn
        last = tl.where(tl.max(weight, 0) > 0.0, tl.max(tl.where(kept, i, 0), 0), last)
        passed += here
        start += BLOCK
    return tl.where(found < vocab, found, last)


def _summary(
    logits: torch.Tensor, rows: torch.Tensor | None, drawn: torch.Tensor | None, edits: Edits | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Launch `_summary_kernel`; → its four results [B, parts] and the number of parts."""
    size, vocab = logits.shape
    wanted = min(max(1, SUMMARY_PROGRAMS // size), MAX_PARTS, triton.cdiv(vocab, SUMMARY_BLOCK))
    part = triton.cdiv(triton.cdiv(vocab, wanted), SUMMARY_BLOCK) * SUMMARY_BLOCK
    parts = triton.cdiv(vocab, part)
    top, low = torch.empty((2, size, parts), dtype=torch.float32, device=logits.device)
    first, bad = torch.empty((2, size, parts), dtype=torch.int32, device=logits.device)
    _summary_kernel[(size, parts)](
        logits,
        top,
        first,
        low,
        bad,
        first if rows is None else rows,
        first if drawn is None else drawn,
        *(edits or [first] * 7),
        logits.stride(0),
        vocab,
        part,
        BLOCK=SUMMARY_BLOCK,
        EDIT_BLOCK=EDIT_BLOCK,
        INDEXED=rows is not None,
        EDITED=edits is not None,
        num_warps=8,
        **chain.options(),
    )
    return top, first, low, bad, parts


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    drawn: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    next_token: torch.Tensor | None = None,
    home: torch.Tensor | None = None,
    edits: Edits | None = None,
) -> torch.Tensor:
    """One token a row from logits [B, V] (any float, dense rows) → [B] int64.

    temperature, top_p, min_p [B] float32, top_k [B] int32 or int64, seeds [B] int64 (the bits of a 64-bit seed),
    drawn [B] (tokens drawn before). Temperature below 1e-6 is greedy; top_k ≤ 0 or ≥ V, top_p ≥ 1 and min_p ≤ 0
    are off. A token is kept if its rank < top_k, the probability of better tokens < top_p, and its own
    probability ≥ min_p of the best one's; equal logits rank by token id. A row without any logit above -inf
    gives token 0.

    With `rows` [B] int32 the five parameters are columns of a table, read at these rows; the token is also
    written to next_token[rows] (int64), to home[0, :B], and to home[1, :B] whether the row's logits are unusable
    (home int32 [2, ≥ B]: none above -inf, or a NaN or +inf among them). A row with drawn < 0 is passed over:
    nothing of it is read or written. `edits` are further columns: a row that has a buffer there draws from changed
    logits, and its token is counted in the buffer.
    """
    size, vocab = logits.shape
    out = torch.empty(size, dtype=torch.int64, device=logits.device)
    if size:
        top, first, low, bad, parts = _summary(logits, rows, drawn, edits)
        _sample_kernel[(size,)](
            logits,
            top,
            first,
            low,
            bad,
            out if rows is None else rows,
            temperature,
            top_k,
            top_p,
            min_p,
            seeds,
            drawn,
            out,
            out if next_token is None else next_token,
            out if home is None else home,
            out if edits is None else edits.values,
            out if edits is None else edits.words,
            logits.stride(0),
            vocab,
            parts,
            0 if home is None else home.stride(0),
            BLOCK=SAMPLE_BLOCK,
            BLOCK_P=MAX_PARTS,
            INDEXED=rows is not None,
            EDITED=edits is not None,
            GREEDY=False,
            num_warps=SAMPLE_WARPS,
            **chain.options(),
        )
    return out


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """First index of the largest logit of each row of [B, V] → [B] int64; NaN never wins."""
    size, vocab = logits.shape
    out = torch.empty(size, dtype=torch.int64, device=logits.device)
    if size:
        top, first, low, bad, parts = _summary(logits, None, None, None)
        _sample_kernel[(size,)](
            logits,
            top,
            first,
            low,
            bad,
            *[out] * 12,
            logits.stride(0),
            vocab,
            parts,
            0,
            BLOCK=SAMPLE_BLOCK,
            BLOCK_P=MAX_PARTS,
            INDEXED=False,
            EDITED=False,
            GREEDY=True,
            num_warps=1,
            **chain.options(),
        )
    return out
