"""Who multiplies, and where the norms of a decoder are done, in `TritonOps`; run by test_triton_interpreted.py."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.attention.torch import TorchAttention  # noqa: E402
from radixlang.config import ModelConfig  # noqa: E402
from radixlang.forward import ForwardBatch, ForwardContext, forwarding  # noqa: E402
from radixlang.kernels import tuning  # noqa: E402
from radixlang.kernels.skinny_linear import BegunNorm  # noqa: E402
from radixlang.layers import triton_ops  # noqa: E402
from radixlang.layers.ops import NormBehind, Ops, TorchOps  # noqa: E402
from radixlang.layers.triton_ops import TritonOps  # noqa: E402
from radixlang.models import Model, load_model, load_spec  # noqa: E402
from radixlang.quant.unquantized import DenseLinear  # noqa: E402

BF16 = torch.bfloat16
EPS = 1e-5
SKINNY = {"block_n": 32, "block_k": 32, "warps": 4, "stages": 2, "programs": 8}
#: the interpreter cuts bfloat16 off instead of rounding it
BOUND = 2e-2 if DEVICE == "cuda" else 4e-2


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TritonOps]:
    """New operations for a chip with this table."""

    def made(**table: list[dict[str, int]]) -> TritonOps:
        monkeypatch.setattr(triton_ops, "chip", lambda device: tuning.Chip(16, tuning.SAFE_SHARED_BYTES, table))
        return TritonOps()

    return made


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def linear(outer: int, inner: int, seed: int, bias: bool = False) -> DenseLinear:
    return DenseLinear(randn(outer, inner, seed=seed) / inner**0.5, randn(outer, seed=seed + 1) if bias else None)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm())


HIDDEN, MLP = 96, 160


def a_part(
    ops: Ops, activation: str, bias: bool = False, tokens: int = 5
) -> tuple[list[torch.Tensor], list[bool]]:
    """What is between two attentions, and the final norm; → results, and whether each of the norms was begun."""
    norms = [randn(HIDDEN, seed=i, dtype=torch.float32) for i in (1, 2, 3)]
    output, gate_up = linear(HIDDEN, 64, 4, bias), linear(2 * MLP, HIDDEN, 6, bias)
    down, qkv = linear(HIDDEN, MLP, 8, bias), linear(128, HIDDEN, 10, bias)
    out, stream = randn(tokens, 64, seed=12), randn(tokens, HIDDEN, seed=13) * 30
    x, stream = ops.linear_add(out, stream, output, NormBehind(norms[0], gate_up, activation))
    begun = [isinstance(x, BegunNorm)]
    gated, stream = ops.norm_gated(x, stream, norms[0], EPS, gate_up, activation)
    x, stream = ops.linear_add(gated, stream, down, NormBehind(norms[1], qkv))
    begun += [isinstance(x, BegunNorm)]
    made, stream = ops.norm_linear(x, stream, norms[1], EPS, qkv)
    x, stream = ops.linear_add(out, stream, output, None)
    begun += [isinstance(x, BegunNorm)]
    return [gated, made, ops.norm(x, stream, norms[2], EPS)[0]], begun


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_a_norm_between_two_products_has_no_kernel(
    use: Callable[..., TritonOps], monkeypatch: pytest.MonkeyPatch, activation: str, bias: bool
) -> None:
    want, _ = a_part(TorchOps(), activation, bias)
    apart, begun = a_part(use(skinny=[SKINNY | {"begin_norm": 0}]), activation, bias)
    assert begun == [False, False, False]
    ops, norms = use(skinny=[SKINNY]), []
    single = TritonOps.rms_norm
    monkeypatch.setattr(TritonOps, "rms_norm", lambda *of: norms.append(0) or single(*of))  # type: ignore[func-returns-value]
    fused, begun = a_part(ops, activation, bias)
    # the library's product of an activation without a kernel wants its norm done, as does who asks for the last
    assert begun == [activation != "gelu", True, False]
    assert len(norms) == begun.count(False)
    for a, b, c in zip(want, apart, fused, strict=True):
        assert error(b, a) < BOUND
        assert error(c, a) < BOUND


MATVEC = {"max_gated": 0, "max_inner": HIDDEN, "min_inner": HIDDEN, "block_n": 8, "warps": 4}


@pytest.mark.parametrize(
    ("table", "begun"),
    [
        ({"skinny": [SKINNY | {"max_gated": 0}, {"block_n": 0}]}, [False, True]),
        ({"skinny": [SKINNY | {"max_inner": HIDDEN}, {"block_n": 0}]}, [True, False]),
        ({"skinny": [SKINNY], "matvec": [MATVEC]}, [True, False]),
        ({"skinny": [{"block_n": 0}]}, [False, False]),
        ({}, [False, False]),
    ],
    ids=["library behind", "library before", "matvec behind", "library", "unmeasured chip"],
)
def test_neighbours_need_not_be_alike(
    use: Callable[..., TritonOps], table: dict[str, Any], begun: list[bool]
) -> None:
    """A norm is begun where a product can and the one behind can end it, and otherwise done between them."""
    made, which = a_part(use(**table), "silu")
    assert which == [*begun, False]
    for got, want in zip(made, a_part(TorchOps(), "silu")[0], strict=True):
        assert error(got, want) < BOUND


def test_only_bfloat16_has_the_range_to_divide_last(use: Callable[..., TritonOps]) -> None:
    """A stream of 2,000 with norm weights of 60 is beyond float16 before it is divided."""
    ops = use(skinny=[SKINNY])
    norm, half = torch.full((HIDDEN,), 60.0, device=DEVICE), torch.float16
    output, qkv = (DenseLinear(linear(HIDDEN, HIDDEN, seed).weight.to(half), None) for seed in (1, 2))
    left, stream = ops.linear_add(
        randn(3, HIDDEN, dtype=half),
        torch.full((3, HIDDEN), 2e3, dtype=half, device=DEVICE),
        output,
        NormBehind(norm, qkv),
    )
    assert left is None
    got, stream = ops.norm_linear(left, stream, norm, EPS, qkv)
    want = TorchOps().norm_linear(None, stream, norm, EPS, qkv)[0]
    assert error(got, want) < 2e-3


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": EPS,
    "hidden_act": "silu",
}
GEMMA = LLAMA | {
    "architectures": ["Gemma2ForCausalLM"],
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16,
    "sliding_window": 32,
}


def a_model(folder: Path, config: dict[str, Any]) -> Model:
    (folder / "config.json").write_text(json.dumps(config))
    options = ModelConfig(model_path=str(folder), load_format="dummy", dtype="bfloat16")
    return load_model(load_spec(options), options, DEVICE, BF16)


def hidden(model: Any, ops: Ops, wanted: list[int] | None) -> torch.Tensor:
    """Of a prompt of six tokens, or of the tokens `wanted` of it."""
    model.ops = ops
    count, size = 6, 4
    spec = model.spec
    kv = [
        torch.zeros((2, 3, size, spec.num_kv_heads, spec.head_dim), dtype=BF16, device=DEVICE) for _ in spec.layers
    ]
    ids = torch.arange(5, 5 + count, device=DEVICE)
    one = {"dtype": torch.int32, "device": DEVICE}
    batch = ForwardBatch(
        input_ids=ids,
        positions=torch.arange(count, device=DEVICE),
        slots=torch.arange(size, size + count, device=DEVICE),
        rows=torch.tensor([1], **one),
        query_starts=torch.tensor([0, count], **one),
        lengths=torch.tensor([count], **one),
        page_table=torch.tensor([[0, 0], [1, 2]], **one),
        page_size=size,
        max_query=count,
        max_length=count,
        wanted=None if wanted is None else torch.tensor(wanted, device=DEVICE),
    )
    attention = TorchAttention(spec, size, torch.device(DEVICE))
    context = ForwardContext(batch, attention, attention.plan(batch), [(k, v) for k, v in kv])
    with torch.inference_mode(), forwarding(context):
        return model(ids, batch.positions)


@pytest.mark.parametrize("wanted", [None, [2, 5]])
@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "sandwich norms"])
def test_a_decoder(
    use: Callable[..., TritonOps], tmp_path: Path, config: dict[str, Any], wanted: list[int] | None
) -> None:
    model = a_model(tmp_path, config)
    for i, layer in enumerate(model.layers):  # type: ignore[attr-defined]
        layer.before_attention.copy_(randn(HIDDEN, seed=i, dtype=torch.float32))
        layer.before_mlp.copy_(randn(HIDDEN, seed=9 + i, dtype=torch.float32))
    want = hidden(model, TorchOps(), wanted)
    apart = hidden(model, use(skinny=[SKINNY | {"begin_norm": 0}]), wanted)
    fused = hidden(model, use(skinny=[SKINNY]), wanted)
    assert want.shape == (2 if wanted else 6, HIDDEN)
    assert error(apart, want) < BOUND
    assert error(fused, want) < BOUND
