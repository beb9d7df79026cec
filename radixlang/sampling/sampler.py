"""The draw: logits in, one token per row out, the same token whatever other rows are drawn with it.

A draw is an inverse look-up: the row's kept probabilities are laid end to end and its one uniform number
points at a token. Rows without limits lay out the whole vocabulary in token order; rows with top-k, top-p or
min-p lay out their candidates from the most likely down, equal ones by token id. Both top-k and top-p look at
the whole distribution (neither sees the other's cut).

    kept:  rank < top_k   and   probability of better tokens < top_p   and   p >= min_p * best p

Each condition holds for a prefix of the ranking, so a row needs its best few tokens only: as many as are
kept, and one more to know that a tie is complete. We take some, and more where these were too few; how many
were taken changes nothing about the result.

On GPUs a Triton kernel draws by the same rule from the same noise, except that limited rows, too, are laid out in
token order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from radixlang.kernels.cpu import fused
from radixlang.plan import Ints
from radixlang.sampling.batch import Group, Limits, SamplingBatch

FIRST_CANDIDATES = 256
MORE_CANDIDATES = 4096
BAD = 1


@dataclass
class Drawn:
    """Outcome for S rows."""

    tokens: torch.Tensor
    """[S] int64"""
    flags: torch.Tensor
    """[S] int32: the bits `BAD` (the logits have no finite maximum, the token means nothing) and `ENDED` (nothing
    but the end may follow in the row's automaton)"""
    logits: torch.Tensor
    """[S, vocab] float32: what the draw was made from, divided by the temperature (1 for greedy rows)"""
    packed: torch.Tensor | None = None
    """int32 [2, S]: tokens and flags once more, where one copy home is cheaper than two"""


def sample(
    state: SamplingBatch,
    logits: torch.Tensor,
    rows: Ints,
    bits: torch.Tensor | None,
    masked: Ints,
    next_token: torch.Tensor | None = None,
    scaled: bool = True,
) -> Drawn:
    """Draw a token for each row and count it. `logits` float32 [S, vocab] is changed in place.

    `bits` int32 [G, words] are grammar masks (bit set = allowed) of the S-indexes `masked`, None for none.
    The tokens are also entered into `next_token` int64, one for each row of the table. With `scaled` off nobody
    reads `Drawn.logits`, and they need not be divided.
    """
    state.settle()
    if state.columns is not None:
        return _sample_by_kernel(state, logits, rows, bits, masked, next_token, scaled)
    automata = state.automata
    if automata is None:
        drawn = _sample(state, logits, rows, bits, masked)
    else:
        where = state.upload(rows)
        automata.mask(logits, where)
        drawn = _sample(state, logits, rows, bits, masked)
        automata.advance(drawn.tokens, where, drawn.flags)
    if next_token is not None:
        next_token[state.upload(rows.astype(np.int64))] = drawn.tokens
    return drawn


def _sample_by_kernel(
    state: SamplingBatch,
    logits: torch.Tensor,
    rows: Ints,
    bits: torch.Tensor | None,
    masked: Ints,
    next_token: torch.Tensor | None,
    scaled: bool,
) -> Drawn:
    from radixlang.kernels.bitmask import apply_bitmask

    columns, count = state.columns, len(rows)
    assert columns is not None
    numbers = state.upload(np.concatenate([rows, state.draw_next(rows), masked]).astype(np.int32))
    device_rows, drawn, index = numbers.split([count, count, len(masked)])
    if bits is not None:
        apply_bitmask(logits, index, bits)
    home = torch.empty((2, count), dtype=torch.int32, device=logits.device)
    if next_token is None:
        next_token = torch.empty(len(columns.seeds), dtype=torch.int64, device=logits.device)
    tokens = state.draw(logits, device_rows, drawn, next_token, home)
    if scaled:
        for s, row in enumerate(rows.tolist()):
            changed = state.edits.changed(row)
            if changed is not None:
                logits[s] = changed
        temperature = columns.temperature[device_rows.long()][:, None]
        logits.div_(torch.where(temperature > 0, temperature, 1.0))
    return Drawn(tokens, home[1], logits, home)


def _sample(
    state: SamplingBatch, logits: torch.Tensor, rows: Ints, bits: torch.Tensor | None, masked: Ints
) -> Drawn:
    group = state.group(rows)
    state.adjust(logits, group, bits, masked)
    if group.temperature is None:
        best, tokens = fused.best(logits) if logits.device.type == "cpu" else logits.max(-1)
        drawn = Drawn(tokens, (~best.isfinite()).int(), logits)
    else:
        best = logits.amax(-1, keepdim=True)
        bad = ~best.isfinite()
        if logits.device.type != "cpu" or bool(bad.any()):
            logits.masked_fill_(bad, 0.0)
            best = best.masked_fill(bad, 0.0)
        logits.div_(group.temperature)
        tokens = _draw(logits, best / group.temperature, group, state.uniforms(group))
        drawn = Drawn(tokens, bad[:, 0].int(), logits)
    state.advance(group, drawn.tokens)
    return drawn


def _draw(logits: torch.Tensor, best: torch.Tensor, group: Group, noise: torch.Tensor) -> torch.Tensor:
    tokens = torch.empty(group.size, dtype=torch.int64, device=logits.device)
    if len(group.greedy):
        tokens[group.greedy] = logits[group.greedy].argmax(-1)
    if len(group.free):
        at = group.free
        tokens[at] = _draw_free(_rows(logits, at), best[at], noise[at])
    if len(group.limited):
        at = group.limited
        assert group.limits is not None
        tokens[at] = _draw_limited(_rows(logits, at), best[at], noise[at], group.limits)
    return tokens


def _rows(logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """`logits[at]` without a copy when these are all rows (the index is always in order)."""
    return logits if len(at) == len(logits) else logits[at]


def _draw_free(logits: torch.Tensor, best: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    weights = (logits - best).exp_()
    ends = weights.cumsum(-1)
    # noise <= 1 - 2^-24, so the product is below the total even after rounding to float32.
    token = torch.searchsorted(ends, noise * ends[:, -1:], right=True).clamp_(max=logits.shape[1] - 1)
    # A parallel sum need not grow evenly: never let it point at an impossible token.
    possible = weights.gather(1, token) > 0
    return torch.where(possible, token, weights.argmax(-1, keepdim=True))[:, 0]


def _draw_limited(logits: torch.Tensor, best: torch.Tensor, noise: torch.Tensor, limits: Limits) -> torch.Tensor:
    vocab = logits.shape[1]
    total = (logits - best).exp_().sum(-1, keepdim=True) if limits.uses_top_p else best.new_ones(best.shape)
    on_cpu = logits.device.type == "cpu"
    first = FIRST_CANDIDATES if limits.max_top_k is None else limits.max_top_k + 1
    if not on_cpu and (limits.max_top_k is None or limits.max_top_k > MORE_CANDIDATES):
        # Asking whether the candidates are enough would make the host wait for the device.
        first = vocab
    tokens, enough = _draw_among(
        logits, best, noise, total, limits, min(first, MORE_CANDIDATES if on_cpu else vocab)
    )
    if not on_cpu:
        return tokens
    for count in (MORE_CANDIDATES, vocab):
        again = (~enough).nonzero()[:, 0]
        if not len(again):
            break
        part = Limits(
            limits.top_k[again], limits.top_p[again], limits.min_p[again], limits.max_top_k, limits.uses_top_p
        )
        tokens[again], enough[again] = _draw_among(
            logits[again], best[again], noise[again], total[again], part, min(count, vocab)
        )
    return tokens


def _draw_among(
    logits: torch.Tensor,
    best: torch.Tensor,
    noise: torch.Tensor,
    total: torch.Tensor,
    limits: Limits,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw among the `count` best tokens. → (tokens [R], [R] whether these were all that matter)."""
    vocab = logits.shape[1]
    if count >= vocab:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
    else:
        values, ids = logits.topk(count, -1)
        by_id = ids.argsort(-1)
        values, order = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(1, by_id).gather(1, order)
    weights = (values - best).exp_()
    ends = weights.cumsum(-1)
    better = F.pad(ends[:, :-1], (1, 0))
    ranks = torch.arange(weights.shape[1], device=logits.device)
    kept = (ranks < limits.top_k) & (better < limits.top_p * total) & (weights >= limits.min_p) & (weights > 0)
    number = kept.sum(-1, keepdim=True).clamp_(min=1)  # a top_p below the smallest float32 keeps the best one
    mass = ends.gather(1, number - 1)
    place = ((ends <= noise * mass) & kept).sum(-1, keepdim=True).clamp_(max=number - 1)
    tokens = ids.gather(1, place)[:, 0]
    if count >= vocab:
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    next_value = values.gather(1, number.clamp(max=count - 1))
    enough = (number < count) & (next_value < values.gather(1, number - 1))
    return tokens, enough[:, 0]
