"""The one decoder: runs any `ModelSpec` that is not an encoder.

Written with few, large operations, because on a CPU a small model's step is mostly overhead. Knows neither
how weights are stored (the quantisation method does) nor which kernels run (`Ops` does).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from radixlang.forward import ForwardBatch, current
from radixlang.layers.attention import Attention
from radixlang.layers.ops import NormBehind, Ops
from radixlang.layers.rotary import frequencies
from radixlang.models.loader import Weights
from radixlang.models.spec import ModelSpec, RopeSpec
from radixlang.quant import Linear


@dataclass(frozen=True)
class Layer:
    """One layer's parts. `after_attention` and `after_mlp` are the extra norms of Gemma-2/3."""

    attention: Attention
    rope: RopeSpec | None
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    before_attention: torch.Tensor
    after_attention: torch.Tensor | None
    before_mlp: torch.Tensor
    after_mlp: torch.Tensor | None


class Decoder:
    """A `Model` (see `radixlang.models`)."""

    def __init__(self, spec: ModelSpec, weights: Weights, ops: Ops) -> None:
        self.spec = spec
        self.ops = ops
        self.embedding = weights.embedding("model.embed_tokens")
        self.embedding_scale = torch.tensor(spec.embedding_scale, dtype=weights.dtype).item()
        self.layers = [self._layer(weights, i) for i in range(spec.num_layers)]
        #: with what the MLP of each layer begins
        self.before_mlps = [NormBehind(layer.before_mlp, layer.gate_up, spec.activation) for layer in self.layers]
        #: with what the layer behind each begins; the last norm's result is the decoder's own
        self.next_layers = [*(NormBehind(layer.before_attention, layer.qkv) for layer in self.layers[1:]), None]
        self.norm = weights.norm("model.norm", spec.norm_offset)
        self.head = self.embedding.head() if spec.tie_embeddings else weights.linear("", ["lm_head"])
        self.ropes: list[tuple[RopeSpec, torch.Tensor, float]] = []
        for layer in self.layers:
            if layer.rope is not None and all(layer.rope != known for known, _, _ in self.ropes):
                inverse, factor = frequencies(layer.rope)
                self.ropes.append((layer.rope, inverse.to(weights.device), factor))
        self.rope_of = [
            next((i for i, (rope, _, _) in enumerate(self.ropes) if rope == layer.rope), -1)
            for layer in self.layers
        ]
        self.weight_bytes = weights.nbytes

    def _layer(self, weights: Weights, index: int) -> Layer:
        spec, rule = self.spec, self.spec.layers[index]
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        q_norm = k_norm = None
        if spec.qk_norm:
            q_norm = weights.norm(attention + "q_norm", spec.norm_offset)
            k_norm = weights.norm(attention + "k_norm", spec.norm_offset)
        norms = ["input_layernorm", None, "post_attention_layernorm", None]
        if spec.sandwich_norms:
            norms = [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ]
        before_attention, after_attention, before_mlp, after_mlp = (
            None if name is None else weights.norm(prefix + name, spec.norm_offset) for name in norms
        )
        assert before_attention is not None
        assert before_mlp is not None
        return Layer(
            attention=Attention(
                heads=spec.num_heads,
                kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                scale=spec.scale,
                window=rule.window,
                softcap=spec.attention_softcap,
                q_norm=q_norm,
                k_norm=k_norm,
                eps=spec.norm_eps,
            ),
            rope=rule.rope,
            qkv=weights.linear(attention, ["q_proj", "k_proj", "v_proj"], spec.qkv_bias),
            output=weights.linear(attention, ["o_proj"], spec.output_bias),
            gate_up=weights.linear(mlp, ["gate_proj", "up_proj"], spec.mlp_bias),
            down=weights.linear(mlp, ["down_proj"], spec.mlp_bias),
            before_attention=before_attention,
            after_attention=after_attention,
            before_mlp=before_mlp,
            after_mlp=after_mlp,
        )

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T], [T] → [T, hidden] after the final norm, or [S, hidden] of `batch.wanted`; writes the tokens' K and
        V into the pages."""
        batch, ops = current().batch, self.ops
        rotations: list[Any] = [ops.rotation(positions, inverse, factor) for _, inverse, factor in self.ropes]
        rotations.append(None)  # layers that do not rotate have index -1
        stream = self.embedding(input_ids)
        if self.embedding_scale != 1.0:
            stream = stream * self.embedding_scale
        return ops.run_layers(self._run_layers, stream, rotations, batch)

    def _run_layers(self, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch) -> torch.Tensor:
        """The residual stream [T, hidden] → [T or S, hidden] after the final norm."""
        # a recording of the layers brings a batch of its own
        context, ops, eps = replace(current(), batch=batch), self.ops, self.spec.norm_eps
        x: Any = None  # what the stream lacks, see `Ops`
        for layer, rope, (k_cache, v_cache), before_mlp, next_layer in zip(
            self.layers, self.rope_of, context.kv, self.before_mlps, self.next_layers, strict=True
        ):
            qkv, stream = ops.norm_linear(x, stream, layer.before_attention, eps, layer.qkv)
            out = ops.attend(qkv, layer.attention, rotations[rope], k_cache, v_cache, context).flatten(1)
            if batch.wanted is not None and layer is self.layers[-1]:
                out, stream = ops.take(out, batch.wanted), ops.take(stream, batch.wanted)
            x, stream = self._add(out, stream, layer.output, layer.after_attention, before_mlp)
            out, stream = ops.norm_gated(x, stream, layer.before_mlp, eps, layer.gate_up, self.spec.activation)
            x, stream = self._add(out, stream, layer.down, layer.after_mlp, next_layer)
        return ops.norm(x, stream, self.norm, eps)[0]

    def _add(
        self,
        x: torch.Tensor,
        stream: torch.Tensor,
        linear: Linear,
        norm: torch.Tensor | None,
        behind: NormBehind | None,
    ) -> tuple[Any, torch.Tensor]:
        """End a part of a layer: its last linear, in the sandwich families normed, goes to the stream."""
        if norm is None:
            return self.ops.linear_add(x, stream, linear, behind)
        return self.ops.rms_norm(linear(x), norm, self.spec.norm_eps), stream

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] → [S, vocab] float32, soft-capped."""
        return self.scores(hidden).float()

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits in the computing dtype, which is all their precision."""
        out = self.ops.linear(hidden, self.head)
        cap = self.spec.final_softcap
        return (out.float().div_(cap).tanh_().mul_(cap)) if cap else out
