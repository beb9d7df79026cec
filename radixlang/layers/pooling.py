"""From hidden states to one embedding a row."""

from __future__ import annotations

import torch


def pool(hidden: torch.Tensor, query_starts: torch.Tensor, kind: str, normalize: bool = True) -> torch.Tensor:
    """hidden [T, H] of B rows of new tokens (`query_starts` [B + 1] int32) → [B, H] float32.

    `kind`: "last" or "cls" (first) token, or the "mean" over the row, which must be complete in this step.
    A row without tokens gives numbers without meaning. No host-device synchronisation.
    """
    starts = query_starts.long()
    if kind == "last":
        out = hidden[(starts[1:] - 1).clamp(min=0)].float()
    elif kind == "cls":
        out = hidden[starts[:-1].clamp(max=hidden.shape[0] - 1)].float()
    else:
        counts = starts[1:] - starts[:-1]
        rows = torch.repeat_interleave(counts, output_size=hidden.shape[0])
        sums = hidden.new_zeros((counts.shape[0], hidden.shape[1]), dtype=torch.float32)
        out = sums.index_add_(0, rows, hidden.float()) / counts.clamp(min=1)[:, None]
    return torch.nn.functional.normalize(out, dim=-1) if normalize else out
