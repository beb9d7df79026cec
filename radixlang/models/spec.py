"""`ModelSpec`: a decoder-only transformer (or encoder) written down as data.

A family file turns a checkpoint's config into one of these; the one decoder in `decoder.py` runs it. Plain
values only, so that the host column's builder and the tools can read sizes without torch.
"""

from __future__ import annotations

import msgspec


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding of a layer. `kind`: "default", "linear" (factor), "llama3", "yarn", "divisors".

    `dim` is the rotated part of the head (the first `dim` numbers), `theta` the base. `parameters` holds the
    numbers of the scaling kind under their Hugging Face names (factor, low_freq_factor,
    original_max_position_embeddings …); `divisors` [dim / 2] divide the frequencies of kind "divisors", which
    is how a GGUF file stores a scaling.
    """

    theta: float = 10000.0
    dim: int = 0
    kind: str = "default"
    parameters: dict[str, float] = {}
    divisors: tuple[float, ...] = ()


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from layer to layer. `window` 0 means full attention; w means keys with pos > query - w."""

    window: int = 0
    rope: RopeSpec | None = RopeSpec()


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and choices of one model. Field comments say what the maths is."""

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    context_length: int
    #: "silu" or "gelu_tanh" or "gelu": act(gate) * up
    activation: str = "silu"
    norm_eps: float = 1e-5
    #: added to the stored norm weight (Gemma stores w - 1)
    norm_offset: float = 0.0
    #: Gemma-2/3: a norm after attention and after the MLP as well
    sandwich_norms: bool = False
    #: RMSNorm of every query and key head before the rotation (Qwen3, Gemma-3)
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tie_embeddings: bool = False
    #: the embedding row is multiplied by this, rounded to the computing dtype (Gemma: sqrt(hidden))
    embedding_scale: float = 1.0
    #: multiplies q·k; 0 means head_dim ** -0.5
    attention_scale: float = 0.0
    #: cap * tanh(score / cap) on attention scores; 0 is none
    attention_softcap: float = 0.0
    #: the same on the logits
    final_softcap: float = 0.0
    #: bidirectional attention and a pooled output instead of logits (BERT)
    encoder: bool = False
    #: "last" or "mean" or "cls": how an embedding is made from the hidden states
    pooling: str = "last"
    #: an embedding is scaled to length 1
    normalize: bool = True
    #: dtype the checkpoint was saved in ("bfloat16" …), for `--dtype auto`
    checkpoint_dtype: str = "float32"
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    #: encoder only: size of the learned position table and of the token-type table
    position_table: int = 0
    type_vocab_size: int = 0

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def scale(self) -> float:
        """Factor on q·k."""
        return self.attention_scale or self.head_dim**-0.5

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of K and V of one token over all layers; 0 for an encoder."""
        if self.encoder:
            return 0
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element
