"""The small operations between the matrix products, behind one object that is chosen once at load.

`TorchOps` says in plain torch what each must compute and runs everywhere; faster implementations have the same
methods. Nothing here knows a model or a step's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F

from radixlang.registry import Registry

if TYPE_CHECKING:
    from radixlang.forward import ForwardBatch, ForwardContext
    from radixlang.layers.attention import Attention
    from radixlang.quant import Linear

    LayersBody = Callable[[torch.Tensor, list[Any], ForwardBatch], torch.Tensor]


@dataclass(frozen=True)
class NormBehind:
    """The norm behind a sum with the stream, and what reads its result: `norm_linear`, or with an `activation`
    `norm_gated`."""

    weight: torch.Tensor
    linear: Linear
    activation: str | None = None


class Ops(Protocol):
    """Norm weights are float32; x has the computing dtype, and so have all results.

    Around the stream of a decoder: `x`, where a method takes or gives it beside `stream`, is what `linear_add`
    left to the next norm: a part's output that is still to be added to the stream; None when nothing is; or, in a
    form that only the same set of operations knows, what it has begun of that norm.
    """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [T, H] → x / rms(x) * weight, computed in float32."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of s, s) with s = x + residual; either argument's memory may be reused."""
        ...

    def rotation(self, positions: torch.Tensor, inverse: torch.Tensor, factor: float) -> Any:
        """What `rotate_and_store` needs of the positions [T]; made once a step for each kind of layer.

        `inverse` [dim / 2] float32 are radians per position, `factor` multiplies cosine and sine.
        """
        ...

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        layer: Attention,
        rotation: Any,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """qkv [T, (heads + 2 kv_heads) * head_dim] → rotated q [T, heads, head_dim].

        Query and key heads are normed if the layer has norms, then rotated (not at all when `rotation` is
        None); k and v go to the caches [pages, page_size, kv_heads, head_dim] at `slots` [T].
        """
        ...

    def attend(
        self,
        qkv: torch.Tensor,
        layer: Attention,
        rotation: Any,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        context: ForwardContext,
    ) -> torch.Tensor:
        """`rotate_and_store`, then the backend's attention → [T, heads, head_dim]; or what gives the same."""
        ...

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """[T, 2 I] → act(first half) * second half; activation "silu", "gelu" or "gelu_tanh"."""
        ...

    def take(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Rows `index` [S] of x [T, H]."""
        ...

    def run_layers(
        self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch
    ) -> torch.Tensor:
        """`body(stream, rotations, batch)`, or what gives the same. `body` must do the same for the same number
        of tokens, whatever is in the tensors."""
        ...

    def norm_linear(
        self, x: Any, stream: torch.Tensor, weight: torch.Tensor, eps: float, linear: Linear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(linear of the norm of s, s) with s = stream + x."""
        ...

    def norm_gated(
        self,
        x: Any,
        stream: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        linear: Linear,
        activation: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(gated activation of the linear of the norm of s, s) with s = stream + x."""
        ...

    def linear_add(
        self, x: torch.Tensor, stream: torch.Tensor, linear: Linear, behind: NormBehind | None
    ) -> tuple[Any, torch.Tensor]:
        """(what is left to the next norm, stream): the linear of x is one or in the other.

        behind: that norm, None if its result is wanted by itself.
        """
        ...

    def norm(
        self, x: Any, stream: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of s, s) with s = stream + x."""
        ...

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """The linear of x, by whatever multiplies fastest."""
        ...


class Steps:
    """The compound methods of `Ops` out of the single ones."""

    def take(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index]

    def run_layers(
        self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch
    ) -> torch.Tensor:
        return body(stream, rotations, batch)

    def attend(
        self: Any,
        qkv: torch.Tensor,
        layer: Attention,
        rotation: Any,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        context: ForwardContext,
    ) -> torch.Tensor:
        batch = context.batch
        q = self.rotate_and_store(qkv, layer, rotation, k_cache, v_cache, batch.slots)
        return context.attention.forward(layer, q, k_cache, v_cache, batch, context.plan)

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return linear(x)

    def norm(
        self: Any, x: torch.Tensor | None, stream: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x is None:
            return self.rms_norm(stream, weight, eps), stream
        return self.add_rms_norm(x, stream, weight, eps)

    def norm_linear(
        self: Any, x: torch.Tensor | None, stream: torch.Tensor, weight: torch.Tensor, eps: float, linear: Linear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, stream = self.norm(x, stream, weight, eps)
        return self.linear(normed, linear), stream

    def norm_gated(
        self: Any,
        x: torch.Tensor | None,
        stream: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        linear: Linear,
        activation: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, stream = self.norm(x, stream, weight, eps)
        return self.gated(linear(normed), activation), stream

    def linear_add(
        self: Any, x: torch.Tensor, stream: torch.Tensor, linear: Linear, behind: NormBehind | None
    ) -> tuple[Any, torch.Tensor]:
        return linear(x), stream


class TorchOps(Steps):
    """Plain torch."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def rotation(
        self, positions: torch.Tensor, inverse: torch.Tensor, factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosines, sines) [T, 1, dim], the sines of the first half negated: x cos + swap(x) sin rotates."""
        cos, sin = cos_sin(positions, inverse, factor)
        return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        layer: Attention,
        rotation: tuple[torch.Tensor, torch.Tensor] | None,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        heads, kv_heads, dim = layer.heads, layer.kv_heads, layer.head_dim
        parts = qkv.view(qkv.shape[0], heads + 2 * kv_heads, dim)
        x, v = parts[:, : heads + kv_heads], parts[:, heads + kv_heads :]
        if layer.qk_norm is not None or rotation is not None:
            x = x.float()
        if layer.qk_norm is not None:
            x = F.rms_norm(x, (dim,), None, layer.eps) * layer.qk_norm
        if rotation is not None:
            cos, sin = rotation
            turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
            turned = (turned * cos).addcmul_(turned.roll(cos.shape[-1] // 2, -1), sin)
            x = torch.cat((turned, rest), -1) if rest.shape[-1] else turned
        q, k = x[:, :heads], x[:, heads:]
        k_cache.view(-1, kv_heads, dim).index_copy_(0, slots, k.to(k_cache.dtype))
        v_cache.view(-1, kv_heads, dim).index_copy_(0, slots, v.to(v_cache.dtype))
        return q.to(qkv.dtype)

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return activate(gate, activation).mul_(up)


def cos_sin(positions: torch.Tensor, inverse: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [T, dim / 2] float32 of positions [T]; computed each step, so no table of all positions
    takes memory and no length is too long for it."""
    angles = positions[:, None].to(torch.float32) * inverse
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """A new tensor with the activation "silu", "gelu" or "gelu_tanh" applied."""
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


OPS: Registry[type[Ops]] = Registry(
    "set of layer operations",
    "ops",
    {
        "torch": "radixlang.layers.ops:TorchOps",
        "cpu": "radixlang.layers.cpu_ops:CpuOps",
        "triton": "radixlang.layers.triton_ops:TritonOps",
        "cpu_exact": "radixlang.layers.cpu_ops:ExactCpuOps",
        "triton_exact": "radixlang.layers.exact_ops:ExactOps",
    },
)
