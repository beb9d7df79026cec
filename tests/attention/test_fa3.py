"""The FlashAttention-3 backend: what the library is handed, on any machine; what comes out, on a Hopper GPU.

Without the library its operator is stood in for by plain torch, under the signature of the pinned package, with
the checks that the package makes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed, and the backend decodes with it")

from radixlang.attention import BACKENDS
from radixlang.attention.fa3 import TILE_ROWS, Fa3Attention, Fa3Plan
from radixlang.attention.triton import TritonAttention
from radixlang.errors import ConfigError
from radixlang.executor.build import choose_attention
from radixlang.forward import ForwardBatch
from radixlang.kernels import reference
from radixlang.models.spec import LayerSpec, ModelSpec

SCHEMA = """fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None,
Tensor? q_v = None, Tensor(out!)? out = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None,
Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = None,
int? max_seqlen_k = None, Tensor? page_table = None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None,
Tensor? rotary_cos = None, Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, Tensor? q_descale = None,
Tensor? k_descale = None, Tensor? v_descale = None, float? softmax_scale = None, bool is_causal = False,
int window_size_left = -1, int window_size_right = -1, int attention_chunk = 0, float softcap = 0.0,
bool is_rotary_interleaved = False, Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None,
int sm_margin = 0, Tensor? sinks = None) -> (Tensor(out!), Tensor, Tensor, Tensor)"""
INSTALLED = importlib.util.find_spec("flash_attn_3") is not None
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INSTALLED, reason="needs the extra `hopper`"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


def spec(heads: int = 8, kv_heads: int = 2, head_dim: int = 64, **more: Any) -> ModelSpec:
    return ModelSpec(
        family="llama",
        architecture="LlamaForCausalLM",
        vocab_size=32,
        hidden_size=heads * head_dim,
        intermediate_size=32,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=(LayerSpec(),),
        context_length=8192,
        **more,
    )


def batch_of(counts: list[int], lengths: list[int], page: int, device: str = "cpu") -> ForwardBatch:
    """Rows in disorder, each with pages of its own in disorder; the table is larger than needed."""
    generator = torch.Generator().manual_seed(sum(lengths))
    total, width = sum(counts), -(-max(lengths) // page) + 2
    slots = len(counts) + 2
    table = torch.randperm(slots * width, generator=generator).view(slots, width).int() + 1
    tensors = {
        "input_ids": torch.zeros(total, dtype=torch.int64),
        "positions": torch.zeros(total, dtype=torch.int64),
        "slots": torch.zeros(total, dtype=torch.int64),
        "rows": torch.randperm(slots, generator=generator)[: len(counts)].int(),
        "query_starts": torch.tensor([0, *counts]).cumsum(0).int(),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "page_table": table,
    }
    placed = {name: tensor.to(device) for name, tensor in tensors.items()}
    return ForwardBatch(**placed, page_size=page, max_query=max(counts), max_length=max(lengths))


def layer_of(head_dim: int, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(**({"scale": head_dim**-0.5, "window": 0, "softcap": 0.0} | more))


def tensors_of(
    model: ModelSpec, batch: ForwardBatch, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q as the layers give it, a slice of the fused projection, and caches without an empty slot."""
    device = batch.rows.device
    generator = torch.Generator(device).manual_seed(1)
    fused = (batch.input_ids.shape[0], model.num_heads + 2 * model.num_kv_heads, model.head_dim)
    cache = (int(batch.page_table.max()) + 1, batch.page_size, model.num_kv_heads, model.head_dim)
    q, k, v = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in (fused, cache, cache))
    return q[:, : model.num_heads], k, v


def expect(
    layer: SimpleNamespace, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch
) -> torch.Tensor:
    where = (batch.page_table, batch.rows, batch.query_starts, batch.lengths)
    return reference.paged_attention(q, k, v, *where, **vars(layer))


def library(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """What the package computes with the arguments that the backend uses, in float32."""
    names = [part.split()[1] for part in SCHEMA[4 : SCHEMA.index(") ->")].replace("\n", " ").split(",")]
    given = dict(zip(names[3:], rest, strict=False))  # trailing defaults are left out
    starts, lengths, table = (given[n] for n in ("cu_seqlens_q", "seqused_k", "page_table"))
    sinks = given.get("sinks")
    assert q.dtype == k.dtype == v.dtype
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == table.stride(-1) == 1
    assert starts.dtype == lengths.dtype == table.dtype == torch.int32
    assert starts.is_contiguous()
    assert lengths.is_contiguous()
    assert starts.shape[0] - 1 == lengths.shape[0] == table.shape[0]
    assert given["max_seqlen_q"] >= int((starts[1:] - starts[:-1]).max())
    assert table.shape[1] * k.shape[1] >= int(lengths.max())
    assert given["softcap"] == 0.0
    assert given["num_splits"] >= 1
    if sinks is not None:
        assert sinks.dtype == torch.bfloat16
        assert sinks.is_contiguous()
        assert sinks.shape == q.shape[1:2]
    out = torch.zeros_like(q)
    for b, length in enumerate(lengths.tolist()):
        queries = q[int(starts[b]) : int(starts[b + 1])].float()
        if not len(queries) or not length:
            continue
        keys = k[table[b].long()].flatten(0, 1)[:length].float().repeat_interleave(q.shape[1] // k.shape[2], 1)
        values = v[table[b].long()].flatten(0, 1)[:length].float().repeat_interleave(q.shape[1] // k.shape[2], 1)
        score = torch.einsum("qhd,khd->hqk", queries, keys) * given["softmax_scale"]
        ahead = torch.arange(length)[None] - torch.arange(length - len(queries), length)[:, None]
        hidden = ahead > (0 if given["is_causal"] else length)
        if given["window_size_left"] >= 0:
            hidden |= ahead < -given["window_size_left"]
        score = score.masked_fill(hidden, float("-inf")).exp()
        total = score.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + sinks.float().exp()[:, None, None]
        out[int(starts[b]) : int(starts[b + 1])] = torch.einsum("hqk,khd->qhd", score / total, values).to(q.dtype)
    return out, q.new_empty(0), q.new_empty(0), q.new_empty(0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, as far as the backend can tell; its operator runs on the CPU."""
    if INSTALLED:
        pytest.skip("the package itself is here, and tested on the GPU")
    parent, module = ModuleType("flash_attn_3"), ModuleType("flash_attn_3._C")
    parent.__spec__, module.__spec__ = ModuleSpec("flash_attn_3", None), ModuleSpec("flash_attn_3._C", None)
    monkeypatch.setitem(sys.modules, "flash_attn_3", parent)
    monkeypatch.setitem(sys.modules, "flash_attn_3._C", module)
    operators = torch.library.Library("flash_attn_3", "FRAGMENT")
    operators.define(SCHEMA.replace("\n", " "))
    operators.impl("fwd", library, "CPU")
    yield
    operators._destroy()


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


MIXED = ([30, 1, 0, 70, 1], [30, 90, 40, 107, 0])


@pytest.mark.parametrize("page", [1, 16, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (8, 2), (8, 1)])
def test_the_library_gets_what_it_needs(stand_in: None, page: int, heads: int, kv_heads: int) -> None:
    model = spec(heads, kv_heads)
    backend = Fa3Attention(model, page, "cpu")
    batch = batch_of(*MIXED, page)
    plan = backend.plan(batch)
    assert isinstance(plan, Fa3Plan)
    assert plan.pages.shape == (5, -(-107 // page))
    assert plan.pages.dtype == torch.int32
    tensors = tensors_of(model, batch, torch.float16)
    for more in ({}, {"window": 1}, {"window": 25}, {"sinks": torch.linspace(-1, 2, heads).bfloat16()}):
        layer = layer_of(64, **more)
        out = backend.forward(layer, *tensors, batch, plan)
        torch.testing.assert_close(out, expect(layer, *tensors, batch), atol=2e-3, rtol=2e-3)


def test_decode_steps_are_left_to_triton(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = spec()
    backend = Fa3Attention(model, 16, "cpu")
    for counts in ([1, 1], [5, 16]):
        batch = batch_of(counts, [20, 40], 16)
        plan = backend.plan(batch)
        assert not isinstance(plan, Fa3Plan)
        assert plan == TritonAttention(model, 16, "cpu").plan(batch)
        monkeypatch.setattr(backend, "_decode", lambda *args, **options: "decoded")
        tensors = tensors_of(model, batch, torch.float16)
        assert backend.forward(layer_of(64), *tensors, batch, plan) == "decoded"


@pytest.mark.parametrize(
    ("dtype", "cache_dtype", "more"),
    [
        (torch.float16, torch.float16, {"softcap": 30.0}),
        (torch.float32, torch.float32, {}),
        (torch.bfloat16, torch.float16, {}),
        (torch.float16, torch.float16, {"sinks": torch.zeros(8)}),
    ],
)
def test_layers_that_the_library_cannot_do(
    stand_in: None,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    more: dict[str, Any],
) -> None:
    model = spec()
    backend = Fa3Attention(model, 16, "cpu")
    batch = batch_of(*MIXED, 16)
    q, k, v = tensors_of(model, batch, dtype)
    calls = []
    monkeypatch.setattr(backend, "_extend", lambda *args, **options: calls.append(options))
    backend.forward(layer_of(64, **more), q, k.to(cache_dtype), v.to(cache_dtype), batch, backend.plan(batch))
    assert calls[0]["softcap"] == more.get("softcap", 0.0)


def test_splits_fill_the_chip_and_no_more(stand_in: None) -> None:
    """A short prompt over a long prefix is split; the library's buffers stay within a tile a multiprocessor."""
    model = spec(32, 8, 128)
    backend = Fa3Attention(model, 16, "cpu")
    backend._chip = SimpleNamespace(units=132)
    expected = {((20,), (8000,)): 15, ((20,), (900,)): 1, ((2048,), (8000,)): 1, ((20,) * 64, (8000,) * 64): 1}
    for (counts, lengths), splits in expected.items():
        plan = backend.plan(batch_of(list(counts), list(lengths), 16))
        assert isinstance(plan, Fa3Plan)
        assert plan.splits == splits
        assert plan.splits == 1 or plan.splits * sum(counts) * 32 <= 132 * TILE_ROWS


def test_supports(hopper: None, stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Fa3Attention.supports(spec(), "cuda") is None
    assert choose_attention("auto", spec(), "cuda") == ("fa3", Fa3Attention)
    assert "64, 128, 192, 256" in (Fa3Attention.supports(spec(head_dim=80), "cuda") or "")
    assert "soft cap" in (Fa3Attention.supports(spec(attention_softcap=50.0), "cuda") or "")
    assert choose_attention("auto", spec(head_dim=80), "cuda")[0] == "triton"
    assert Fa3Attention.supports(spec(), "cpu")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "Hopper" in (Fa3Attention.supports(spec(), "cuda") or "")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    assert "Hopper" in (Fa3Attention.supports(spec(), "cuda") or "")


def test_a_missing_or_broken_package_names_the_extra(
    hopper: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "flash_attn_3" else object())
    with pytest.raises(ConfigError, match=r"--attention-backend fa3 .*pip install 'radixlang\[hopper\]'"):
        choose_attention("fa3", spec(), "cuda")
    assert choose_attention("auto", spec(), "cuda")[0] == "triton"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "flash_attn_3", None)
    with pytest.raises(ConfigError, match=r"does not load .*CUDA 13"):
        choose_attention("fa3", spec(), "cuda")
    monkeypatch.delitem(sys.modules, "flash_attn_3")
    (tmp_path / "flash_attn_3").mkdir()
    (tmp_path / "flash_attn_3" / "__init__.py").write_text("raise RuntimeError('for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    assert choose_attention("auto", spec(), "cuda")[0] == "triton"
    assert "for another torch" in (Fa3Attention.supports(spec(), "cuda") or "")


def test_registered_first() -> None:
    assert BACKENDS.names()[0] == "fa3"
    assert BACKENDS.get("fa3") is Fa3Attention


class TestOnHopper:
    """The library itself against the twin. Its splits and its tiles round differently: tolerances of bfloat16."""

    pytestmark = on_gpu

    @pytest.mark.parametrize("page", [1, 16, 64, 128])
    @pytest.mark.parametrize("dim", [64, 128, 192, 256])
    @pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (8, 1)])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_mixed_batch(self, page: int, dim: int, heads: int, kv_heads: int, dtype: torch.dtype) -> None:
        model = spec(heads, kv_heads, dim)
        backend = Fa3Attention(model, page, "cuda")
        batch = batch_of([300, 1, 0, 170, 1, 1], [300, 900, 40, 1070, 0, 0], page, "cuda")
        plan = backend.plan(batch)
        tensors = tensors_of(model, batch, dtype)
        sinks = torch.linspace(-3.0, 4.0, heads, device="cuda").bfloat16()
        for more in ({}, {"window": 1}, {"window": 100}, {"window": 4000}, {"sinks": sinks}):
            layer = layer_of(dim, **more)
            out = backend.forward(layer, *tensors, batch, plan)
            torch.testing.assert_close(out, expect(layer, *tensors, batch), atol=2e-2, rtol=2e-2)

    @pytest.mark.parametrize("page", [16, 64, 128])
    @pytest.mark.parametrize("dim", [64, 128, 256])
    def test_few_queries_over_a_long_prefix(self, page: int, dim: int) -> None:
        model = spec(32, 8, dim)
        backend = Fa3Attention(model, page, "cuda")
        for counts, lengths in (([20], [7000]), ([20, 1, 3, 1], [7000, 5000, 3, 0])):
            batch = batch_of(counts, lengths, page, "cuda")
            plan = backend.plan(batch)
            assert isinstance(plan, Fa3Plan)
            assert plan.splits > 1
            tensors = tensors_of(model, batch, torch.bfloat16)
            for window in (0, 600):
                layer = layer_of(dim, window=window)
                out = backend.forward(layer, *tensors, batch, plan)
                torch.testing.assert_close(out, expect(layer, *tensors, batch), atol=2e-2, rtol=2e-2)

    @pytest.mark.parametrize("page", [16, 128])
    def test_in_a_graph(self, page: int) -> None:
        """Captured on one batch, replayed on another: the plan's gather is captured with the rest."""
        model = spec(8, 2, 128)
        backend = Fa3Attention(model, page, "cuda")
        batch = batch_of([200, 56, 1, 1, 0], [900, 900, 900, 900, 900], page, "cuda")
        q, k, v = tensors_of(model, batch, torch.bfloat16)
        layer = layer_of(128)
        backend.forward(layer, q, k, v, batch, backend.plan(batch))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = backend.forward(layer, q, k, v, batch, backend.plan(batch))
        for counts, lengths in (
            ([120, 90, 46, 1, 1], [700, 90, 46, 0, 0]),
            ([200, 56, 1, 1, 0], [900, 80, 7, 900, 9]),
        ):
            source = batch_of(counts, lengths, page, "cuda")
            for name in ("rows", "query_starts", "lengths"):
                getattr(batch, name).copy_(getattr(source, name))
            graph.replay()
            torch.testing.assert_close(out, expect(layer, q, k, v, batch), atol=2e-2, rtol=2e-2)
