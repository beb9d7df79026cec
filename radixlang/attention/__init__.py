"""The attention seam: three methods and a table.

A backend reads K and V from pages; the layer has already written the new tokens' K and V there, unless the
step's plan offers to do that too (`FusedPlan`). Buffers are static, so graph capture is no part of the interface:
in a graph, `plan` and `forward` see a batch whose `max_query` and `max_length` are upper bounds; behind the step's
own rows comes one of length 0 with the tokens that pad the step, then rows without tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from radixlang.registry import Registry

if TYPE_CHECKING:
    import torch

    from radixlang.forward import ForwardBatch
    from radixlang.kernels.tuning import TreeTile
    from radixlang.models.spec import ModelSpec


class AttentionLayer(Protocol):
    """What a backend reads of a layer. `window` 0 is full attention; `softcap` 0.0 is none."""

    scale: float
    window: int
    softcap: float


class ProjectedLayer(AttentionLayer, Protocol):
    """What `FusedPlan.fused` reads of a layer besides (see `layers.attention`)."""

    heads: int
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float


class FusedPlan(Protocol):
    """What a plan may be, where its backend can begin a step at the projection."""

    fused: Fused | None
    """None: not this step"""


class Fused(Protocol):
    def __call__(
        self,
        layer: ProjectedLayer,
        qkv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Norm, rotation, writing of K and V, and attention: qkv [T, (heads + 2 kv_heads) * head_dim] → [T, heads,
        head_dim]. `angles` are cosines and sines [T, R / 2] float32, None where the layer does not rotate."""
        ...


class AttentionBackend(Protocol):
    """One per engine, made as `Backend(spec, page_size, device)`."""

    reads_back: bool
    """`plan` waits for the device where rows bring several tokens: no graph can hold such a step"""
    tree: Mapping[int, TreeTile]
    """how it does steps with `ForwardBatch.tree`, by the cache's bytes an element; empty: it knows none"""

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        """None if the backend can run the model on the device type, else the reason in a sentence."""
        ...

    def plan(self, batch: ForwardBatch) -> Any:
        """Work shared by all layers of a step; no host-device synchronisation. May be a `FusedPlan`."""
        ...

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
        plan: Any,
    ) -> torch.Tensor:
        """Causal attention of q [T, heads, head_dim] over the rows' pages → [T, heads, head_dim]."""
        ...


BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "attention backend",
    "attention",
    {
        "fa3": "radixlang.attention.fa3:Fa3Attention",
        "triton": "radixlang.attention.triton:TritonAttention",
        "cpu": "radixlang.attention.cpu:CpuAttention",
        "torch_native": "radixlang.attention.torch:TorchAttention",
    },
)
"""In order of preference; `auto` takes the first that supports the model on the device."""

EXACT_BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "attention backend of --enable-deterministic-inference",
    "exact_attention",
    {
        "triton": "radixlang.attention.exact:ExactTritonAttention",
        "cpu": "radixlang.attention.exact:ExactCpuAttention",
    },
)
"""Those that give a query the same bits in any step, under the names of the ordinary ones."""
