"""The device column's front door: a plan goes in, a ticket comes out, results are asked for later.

`executor.build.build_executor(config, progress)` makes one; the engine holds it through this protocol, so
that tests put a fake there. Importing this module must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from radixlang.plan import StepPlan, StepResult


class Executor(Protocol):
    """Launches plans in order. Nothing here blocks but `result` (and `close`)."""

    def launch(self, plan: StepPlan) -> Any:
        """Start the forward pass of `plan`; when no row is masked, sampling is part of it. → ticket"""
        ...

    def sample(self, ticket: Any, masks: np.ndarray | None) -> None:
        """Start the sampling of a launched step: `masks` int32 [G, ceil(vocab / 32)], bit set = allowed, one
        row for each entry of `plan.masked`; None when there is none (a no-op then). Comes before the next
        launch, which needs the tokens."""
        ...

    def result(self, ticket: Any) -> StepResult:
        """Wait for the step's outcome. An exception in the step is raised here, and `EngineError` where so many
        steps have been launched since that what came home has made room for theirs (`step_blocks.COUNT`)."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


@dataclass(frozen=True)
class EngineShape:
    """Sizes of a built engine: what the host column needs to plan, and what `/server_info` shows."""

    num_pages: int
    """pages of the KV pool, the sink (page 0) included: usable ids are 1 … num_pages - 1"""
    page_size: int
    max_rows: int
    """rows of the request table, the sink (row 0) included: usable ids are 1 … max_rows - 1"""
    context_length: int
    """most tokens of one row, prompt and answer together"""
    vocab_size: int
    eos_ids: tuple[int, ...]
    encoder: bool
    """bidirectional model: a prompt must be granted whole, nothing is sampled, nothing can be cached"""
    weight_bytes: int
    """on one device, as is `kv_bytes`"""
    kv_bytes: int
    device: str
    """begins with the device's type ("cpu: …", "cuda: …"), then its name"""
    dtype: str
    attention_backend: str
    load_seconds: float
    load_spans: dict[str, float] = field(default_factory=dict)
    """the parts of `load_seconds`"""
    architecture: str = ""
    model_type: str = ""
    hidden_size: int = 0
    automaton_slots: int = 0
    """constraints that rows may follow on the device at a time"""
    host_slots: int = 0
    """KV pages that host memory holds below the pool"""
    whole_prompts: bool = False
    """vectors are made of all tokens of a prompt, as an encoder's are: it must be granted whole, and nothing of it
    can come out of a cache"""
    kv_identity: str = ""
    """hex digits that stand for all that decides which bytes a page of given tokens holds"""
