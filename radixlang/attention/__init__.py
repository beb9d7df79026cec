"""The attention seam: three methods and a table.

A backend reads K and V from pages; the layer has already written the new tokens' K and V there. Buffers are
static, so graph capture is no part of the interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from radixlang.registry import Registry

if TYPE_CHECKING:
    import torch

    from radixlang.forward import ForwardBatch
    from radixlang.models.spec import ModelSpec


class AttentionLayer(Protocol):
    """What a backend reads of a layer. `window` 0 is full attention; `softcap` 0.0 is none."""

    scale: float
    window: int
    softcap: float


class AttentionBackend(Protocol):
    """One per engine, made as `Backend(spec, page_size, device)`."""

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        """None if the backend can run the model on the device type, else the reason in a sentence."""
        ...

    def plan(self, batch: ForwardBatch) -> Any:
        """Work shared by all layers of a step; no host-device synchronisation."""
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
