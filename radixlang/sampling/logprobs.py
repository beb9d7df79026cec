"""Log-probabilities at positions: chosen token, the best few, and the ids asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from radixlang.plan import PositionLogprobs
from radixlang.platforms import Platform


@dataclass
class LogprobTensors:
    """`PositionLogprobs` on its way home."""

    chosen: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor
    ids: torch.Tensor

    def home(self, platform: Platform) -> LogprobTensors:
        return LogprobTensors(*(platform.home(t) for t in (self.chosen, self.top_ids, self.top, self.ids)))


@dataclass(frozen=True)
class Segment:
    """Positions begin … end - 1 of a block and what is wanted at each of them."""

    begin: int
    end: int
    top: int
    token_ids: tuple[int, ...]


def position_logprobs(logits: torch.Tensor, chosen: torch.Tensor, segments: list[Segment]) -> list[LogprobTensors]:
    """log_softmax of float32 logits [n, vocab] at `chosen` int64 [n] and at each segment's other tokens.

    Asked ids at or past the vocabulary get minus infinity; `top` is cut at the vocabulary.
    """
    vocab = logits.shape[1]
    total = _totals(logits)
    values = (logits.gather(1, chosen[:, None]) - total)[:, 0]
    most = min(max((segment.top for segment in segments), default=0), vocab)
    best, best_ids = logits.topk(most, -1)
    best = best - total
    out = []
    for segment in segments:
        part = slice(segment.begin, segment.end)
        asked = logits.new_empty((segment.end - segment.begin, 0))
        if segment.token_ids:
            wanted = torch.tensor(segment.token_ids, device=logits.device)
            asked = logits[part, wanted.clamp(0, vocab - 1)] - total[part]
            asked.masked_fill_((wanted < 0) | (wanted >= vocab), -torch.inf)
        out.append(
            LogprobTensors(values[part], best_ids[part, : segment.top].int(), best[part, : segment.top], asked)
        )
    return out


def _totals(logits: torch.Tensor) -> torch.Tensor:
    """log Σ exp of each row [n, vocab] → [n, 1]; the same bits for a row whatever rows come with it."""
    if logits.device.type in ("cuda", "xpu") and find_spec("triton") is not None:
        from radixlang.kernels.log_sum_exp import log_sum_exp

        return log_sum_exp(logits)
    out = logits.new_empty((len(logits), 1))
    for row, place in zip(logits, out, strict=True):
        torch.logsumexp(row, -1, keepdim=True, out=place)
    return out


def join(parts: list[LogprobTensors]) -> PositionLogprobs:
    """The positions of all parts, one after another, as host arrays."""

    def all_of(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name).numpy() for part in parts])

    return PositionLogprobs(
        chosen=all_of("chosen"), top_ids=all_of("top_ids"), top=all_of("top"), ids=all_of("ids")
    )
