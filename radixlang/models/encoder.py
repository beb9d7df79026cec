"""The BERT encoder: every token of a row sees every other one; there is no KV and nothing to resume.

A row must therefore be granted whole. Attention pads the rows to the longest of the step, all other
operations run on the T tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from radixlang.errors import EngineError
from radixlang.forward import ForwardBatch, current
from radixlang.layers.ops import Ops, activate
from radixlang.models.loader import Weights
from radixlang.models.spec import ModelSpec
from radixlang.quant import Linear

Affine = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """One layer's parts; the norms are (weight, bias) and follow the part they belong to."""

    qkv: Linear
    output: Linear
    attention_norm: Affine
    up: Linear
    down: Linear
    mlp_norm: Affine


class Encoder:
    """A `Model` without logits."""

    def __init__(self, spec: ModelSpec, weights: Weights, ops: Ops) -> None:
        self.spec = spec
        self.words = weights.embedding("embeddings.word_embeddings")
        self.places = weights.embedding("embeddings.position_embeddings")
        # All tokens are of type 0: one sentence at a time.
        types = weights.embedding("embeddings.token_type_embeddings")
        self.type_row = types(torch.zeros(1, dtype=torch.int64, device=weights.device))
        self.norm = self._affine(weights, "embeddings.LayerNorm")
        self.layers = [self._layer(weights, f"encoder.layer.{i}.") for i in range(spec.num_layers)]
        self.weight_bytes = weights.nbytes

    @staticmethod
    def _affine(weights: Weights, name: str) -> Affine:
        # Unlike an RMS norm's, these weights are used in the computing dtype: `F.layer_norm` wants one dtype.
        return weights.norm(name).to(weights.dtype), weights.vector(name + ".bias").to(weights.dtype)

    def _layer(self, weights: Weights, prefix: str) -> Layer:
        return Layer(
            qkv=weights.linear(prefix + "attention.self.", ["query", "key", "value"], True),
            output=weights.linear(prefix + "attention.output.", ["dense"], True),
            attention_norm=self._affine(weights, prefix + "attention.output.LayerNorm"),
            up=weights.linear(prefix + "intermediate.", ["dense"], True),
            down=weights.linear(prefix + "output.", ["dense"], True),
            mlp_norm=self._affine(weights, prefix + "output.LayerNorm"),
        )

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T], [T] → [T, hidden]."""
        pads = _Padding(current().batch)
        x = self._norm(self.words(input_ids) + self.places(positions) + self.type_row, self.norm)
        for layer in self.layers:
            x = self._norm(layer.output(self._attend(layer.qkv(x), pads)).add_(x), layer.attention_norm)
            x = self._norm(layer.down(activate(layer.up(x), self.spec.activation)).add_(x), layer.mlp_norm)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        raise EngineError(f"{self.spec.architecture} is an encoder and gives embeddings only, no next token.")

    scores = logits

    def _norm(self, x: torch.Tensor, affine: Affine) -> torch.Tensor:
        return F.layer_norm(x, (self.spec.hidden_size,), *affine, self.spec.norm_eps)

    def _attend(self, qkv: torch.Tensor, pads: _Padding) -> torch.Tensor:
        """[T, 3 hidden] → [T, hidden]."""
        spec = self.spec
        padded = pads.pad(qkv).view(pads.rows, pads.width, 3, spec.num_heads, spec.head_dim)
        q, k, v = padded.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=pads.mask, scale=spec.scale)
        return pads.unpad(out.transpose(1, 2).reshape(pads.rows * pads.width, -1))


class _Padding:
    """Where each of the T tokens lies in a [rows, width] rectangle, width being the longest row's tokens."""

    def __init__(self, batch: ForwardBatch) -> None:
        starts = batch.query_starts.long()
        counts = starts[1:] - starts[:-1]
        total = batch.input_ids.shape[0]
        self.rows, self.width = batch.size, batch.max_query
        row = torch.repeat_interleave(counts, output_size=total)
        self.index = row * self.width + torch.arange(total, device=row.device) - starts[row]
        columns = torch.arange(self.width, device=row.device)
        # A row without tokens sees its first column, so that its softmax is over something.
        self.mask = (columns < counts.clamp(min=1)[:, None])[:, None, None]

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n] → [rows * width, n], zeros elsewhere."""
        return x.new_zeros((self.rows * self.width, x.shape[1])).index_copy_(0, self.index, x)

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `pad`."""
        return x[self.index]
