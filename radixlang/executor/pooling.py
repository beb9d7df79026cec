"""Embeddings: one vector from the hidden states of a row."""

from __future__ import annotations

import torch

from radixlang.executor.inputs import Inputs
from radixlang.plan import StepPlan


def pool_rows(
    plan: StepPlan, inputs: Inputs, hidden: torch.Tensor, pooling: str
) -> tuple[dict[int, torch.Tensor], dict[int, str]]:
    """Vectors float32 [hidden] of the rows with `pools`, by plan index, and the rows that have none.

    "last" needs the row's last token only; "mean" and "cls" need all its tokens in this one step.
    """
    out: dict[int, torch.Tensor] = {}
    failed: dict[int, str] = {}
    for b in plan.pools.nonzero()[0].tolist():
        begin, end = int(inputs.query_starts[b]), int(inputs.query_starts[b + 1])
        if pooling == "last":
            out[b] = hidden[end - 1].float()
        elif plan.starts[b]:
            failed[b] = (
                f"The {pooling} pooling of this model needs the prompt in one step; "
                "raise --chunked-prefill-size above its length."
            )
        elif pooling == "cls":
            out[b] = hidden[begin].float()
        else:
            out[b] = hidden[begin:end].float().mean(0)
    return out, failed
