"""What `--enable-deterministic-inference` asks of a model and a device, and the proof that the device keeps it."""

from __future__ import annotations

import numpy as np
import torch

from radixlang.errors import ConfigError
from radixlang.executor.launch import DeviceExecutor
from radixlang.models.spec import ModelSpec
from radixlang.plan import LogprobWish, PositionLogprobs, RowSetup, StepPlan
from radixlang.sampling_params import RowSampling

PROOF_TOKENS = 700
"""of the prompt of `prove`: more than any tile takes, and some chunks of keys"""
_FLAG = "--enable-deterministic-inference"


def check(spec: ModelSpec, kind: str, dtype: torch.dtype) -> None:
    """Refuse what is not covered, before weights load.

    Raises:
        ConfigError: an encoder, or a dtype whose products have no exact kernel on a device of this `kind`.
    """
    if spec.encoder:
        raise ConfigError(f"{_FLAG} is for decoders, and {spec.architecture} is an encoder; leave the flag out.")
    if kind == "cpu" and dtype != torch.float32:
        raise ConfigError(f"{_FLAG} computes in float32 on a CPU; leave --dtype out or set it to float32.")
    if kind != "cpu" and dtype == torch.float32:
        raise ConfigError(f"{_FLAG} computes in 16 bits on a GPU; set --dtype to bfloat16 or float16.")


def prove(executor: DeviceExecutor) -> None:
    """Cut one prompt in several ways, on row 1 and pages that nobody owns yet, and compare what comes out.

    Raises:
        ConfigError: the last token's log-probabilities depend on the cuts, as they do if a chip's matrix
            instructions add up in another order for another tile.
    """
    size = executor.pool.page_size
    length = min(PROOF_TOKENS, executor.table.host_pages.shape[1] * size - 1)
    whole = _last_logprobs(executor, [length])
    for cuts in ([length - 1, 1], [length // 7, length - length // 7], [1, length // 2, length - length // 2 - 1]):
        part = _last_logprobs(executor, [count for count in cuts if count])
        if not (np.array_equal(part.top_ids, whole.top_ids) and np.array_equal(part.top, whole.top)):
            raise ConfigError(
                f"{_FLAG} cannot be kept on {executor.platform.describe()}: a token's numbers depend there on how "
                "its prompt is cut; leave the flag out."
            )


def _last_logprobs(executor: DeviceExecutor, cuts: list[int]) -> PositionLogprobs:
    """The best log-probabilities after one prompt of `sum(cuts)` tokens that is computed in `cuts`."""
    size, length, none = executor.pool.page_size, sum(cuts), np.zeros(0, np.int32)
    ids = (np.arange(length, dtype=np.int64) * 7919 % executor.spec.vocab_size).astype(np.int32)
    start = 0
    for step, count in enumerate(cuts):
        last = start + count == length
        wish = LogprobWish(index=0, first_logit=-1, targets=none, output=True, top=20, token_ids=())
        pages = [(1, i, i + 1) for i in range((length + size) // size)] if step == 0 else []
        plan = StepPlan(
            step=step,
            rows=np.array([1], np.int32),
            starts=np.array([start], np.int32),
            counts=np.array([count], np.int32),
            token_ids=ids[start : start + count],
            samples=np.array([last]),
            pools=np.array([False]),
            new_pages=np.array(pages, np.int32).reshape(-1, 3),
            setups=(RowSetup(1, RowSampling(), none, none),) if step == 0 else (),
            logprobs=(wish,) if last else (),
        )
        result = executor.result(executor.launch(plan))
        start += count
    return result.output_logprobs[0]
