"""Embeddings of a step: which rows can have one, and theirs."""

from __future__ import annotations

import numpy as np
import torch

from radixlang.executor.inputs import Inputs
from radixlang.layers.pooling import pool
from radixlang.models.spec import ModelSpec
from radixlang.plan import StepPlan


def pool_rows(
    plan: StepPlan, inputs: Inputs, hidden: torch.Tensor, spec: ModelSpec
) -> tuple[dict[int, torch.Tensor], dict[int, str]]:
    """Vectors float32 [hidden] of the rows with `pools`, by plan index, and the rows that cannot have one.

    "last" needs the row's last token only; "mean" and "cls" need all its tokens in this one step.
    """
    vectors = pool(hidden, inputs.batch.query_starts, spec.pooling, spec.normalize)
    wanted = np.flatnonzero(plan.pools).tolist()
    cut = [b for b in wanted if spec.pooling != "last" and plan.starts[b] > 0]
    reason = f"The {spec.pooling} pooling of this model needs the prompt in one step."
    return {b: vectors[b] for b in wanted if b not in cut}, dict.fromkeys(cut, reason)
