"""The Triton backend behind the attention seam: what it refuses, what it plans, and that a step is right."""

from __future__ import annotations

import os

import msgspec
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

import itertools  # noqa: E402
from dataclasses import replace  # noqa: E402
from types import SimpleNamespace  # noqa: E402

from radixlang.attention import BACKENDS, EXACT_BACKENDS  # noqa: E402
from radixlang.attention.triton import TritonAttention  # noqa: E402
from radixlang.forward import ForwardBatch, ForwardContext  # noqa: E402
from radixlang.kernels import reference, tuning  # noqa: E402
from radixlang.layers.attention import Attention  # noqa: E402
from radixlang.layers.ops import TorchOps  # noqa: E402
from radixlang.layers.triton_ops import TritonOps  # noqa: E402
from radixlang.models.spec import LayerSpec, ModelSpec  # noqa: E402

PAGE = 8


def spec(heads: int = 6, kv_heads: int = 2, head_dim: int = 64, encoder: bool = False) -> ModelSpec:
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
        context_length=256,
        encoder=encoder,
    )


def batch_of(counts: list[int], lengths: list[int]) -> ForwardBatch:
    total = sum(counts)
    width = -(-max(lengths) // PAGE) + 1
    table = torch.arange(1, 1 + len(counts) * width, dtype=torch.int32).view(len(counts), width)
    tensors = {
        "input_ids": torch.zeros(total, dtype=torch.int64),
        "positions": torch.zeros(total, dtype=torch.int64),
        "slots": torch.zeros(total, dtype=torch.int64),
        "rows": torch.arange(len(counts), dtype=torch.int32).flip(0).contiguous(),
        "query_starts": torch.tensor([0, *counts]).cumsum(0).int(),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "page_table": table,
    }
    on_device = {name: tensor.to(DEVICE) for name, tensor in tensors.items()}
    return ForwardBatch(**on_device, page_size=PAGE, max_query=max(counts), max_length=max(lengths))


@pytest.mark.parametrize(
    ("counts", "lengths", "few"),
    [([1, 1, 1], [40, 3, 0], True), ([5, 1], [30, 7], True), ([30, 1, 9], [30, 44, 20], False)],
)
def test_a_step_equals_the_twin(counts: list[int], lengths: list[int], few: bool) -> None:
    model = spec()
    backend = TritonAttention(model, PAGE, DEVICE)
    batch = batch_of(counts, lengths)
    plan = backend.plan(batch)
    assert bool(plan.decode) is few
    assert bool(plan.extend) is not few
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((sum(counts), 6, 64), generator=generator).to(DEVICE)
    cache = torch.randn((2, 32, PAGE, 2, 64), generator=generator).to(DEVICE)
    for layer in (
        SimpleNamespace(scale=0.125, window=0, softcap=0.0),
        SimpleNamespace(scale=0.2, window=11, softcap=4.0),
        SimpleNamespace(scale=0.125, window=0, softcap=0.0, sinks=torch.linspace(-1, 2, 6).to(DEVICE)),
    ):
        out = backend.forward(layer, q, cache[0], cache[1], batch, plan)
        expected = reference.paged_attention(
            q,
            cache[0],
            cache[1],
            batch.page_table,
            batch.rows,
            batch.query_starts,
            batch.lengths,
            **vars(layer),
        )
        torch.testing.assert_close(out, expected, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("turned", [64, 32, 0])
def test_a_decode_step_from_the_projection(
    turned: int, normed: bool, separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one kernel only where no row reads what another writes; the same either way. Whatever this chip's table
    says."""
    monkeypatch.setattr(tuning, "chip", lambda device: tuning.Chip(20, tuning.SAFE_SHARED_BYTES, {}))
    backend, ops = TritonAttention(spec(), PAGE, DEVICE), TritonOps()
    batch = replace(batch_of([1, 1, 1], [40, 3, 17]), separate=separate)
    newest = batch.lengths.long() - 1
    pages = batch.page_table[batch.rows.long(), newest // PAGE].long()
    batch = replace(batch, positions=newest, slots=pages * PAGE + newest % PAGE)
    plan = backend.plan(batch)
    assert (plan.fused is not None) is separate
    generator = torch.Generator().manual_seed(0)
    norms = [torch.rand(64, generator=generator).to(DEVICE) for _ in range(2)] if normed else [None, None]
    layer = Attention(6, 2, 64, scale=0.125, window=11, softcap=4.0, q_norm=norms[0], k_norm=norms[1], eps=1e-6)
    qkv = torch.randn((3, 10 * 64), generator=generator).to(DEVICE)
    cache = torch.randn((2, 32, PAGE, 2, 64), generator=generator).to(DEVICE)
    inverse = torch.rand(turned // 2, generator=generator).to(DEVICE)
    rotation = ops.rotation(batch.positions, inverse, 1.0) if turned else None
    plain = TorchOps()
    plain_rotation = plain.rotation(batch.positions, inverse, 1.0) if turned else None
    twin = cache.clone()
    q = plain.rotate_and_store(qkv, layer, plain_rotation, twin[0], twin[1], batch.slots)
    expected = reference.paged_attention(
        q, twin[0], twin[1], batch.page_table, batch.rows, batch.query_starts, batch.lengths,
        scale=0.125, window=11, softcap=4.0,
    )  # fmt: skip
    out = ops.attend(qkv, layer, rotation, cache[0], cache[1], ForwardContext(batch, backend, plan, []))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cache, twin, atol=1e-5, rtol=1e-5)


def test_the_table_can_switch_the_one_kernel_off(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"block": 64, "warps": 4, "stages": 2, "projected": 0, "prefetch": 1}
    monkeypatch.setattr(tuning, "chip", lambda device: tuning.Chip(20, 65536, {"decode": [entry]}))
    plan = TritonAttention(spec(), PAGE, DEVICE).plan(replace(batch_of([1], [40]), separate=True))
    assert plan.fused is None
    assert plan.decode[2].prefetch


def test_registered() -> None:
    assert BACKENDS.get("triton") is TritonAttention


def test_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TritonAttention.supports(spec(), DEVICE) is None
    assert "256" in (TritonAttention.supports(spec(head_dim=512), DEVICE) or "")
    assert "encoder" in (TritonAttention.supports(spec(encoder=True), DEVICE) or "")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert TritonAttention.supports(spec(), "cuda:0") is None
    assert "cpu" in (TritonAttention.supports(spec(), "cpu") or "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "not installed" in (TritonAttention.supports(spec(), "cuda") or "")


def h200() -> tuning.Chip:
    return tuning.Chip(units=132, shared_bytes=196608, table=tuning.measured("nvidia_h200"))


@pytest.mark.parametrize(
    ("batch", "length", "page", "splits", "block"),
    [
        (1, 1024, 16, 16, 64),
        (1, 8192, 16, 16, 64),
        (8, 1024, 16, 4, 64),
        (32, 1024, 16, 1, 64),
        (128, 1024, 16, 1, 32),
    ],
)
def test_decode_settings_are_the_measured_ones(
    batch: int, length: int, page: int, splits: int, block: int
) -> None:
    sizes = {"kv_heads": 8, "head_dim": 128, "page_size": page}
    tile = tuning.decode_tile(h200(), batch=batch, queries=4, max_length=length, element_size=2, **sizes)
    assert (tile.splits, tile.block) == (splits, block)


def test_decode_settings_for_large_pages_and_wide_elements() -> None:
    sizes = {"batch": 32, "queries": 4, "max_length": 1024, "kv_heads": 8, "head_dim": 128}
    assert tuning.decode_tile(h200(), page_size=16, element_size=2, **sizes).keys_left
    assert not tuning.decode_tile(h200(), page_size=16, element_size=4, **sizes).keys_left
    sizes["batch"] = 128
    assert tuning.decode_tile(h200(), page_size=16, element_size=2, **sizes).stages == 3
    assert tuning.decode_tile(h200(), page_size=64, element_size=2, **sizes).stages == 4


@pytest.mark.parametrize(
    ("page", "head_dim", "element_size", "described"),
    [
        (16, 128, 2, True),
        (64, 64, 2, True),
        (16, 128, 1, False),
        (16, 128, 4, False),
        (16, 96, 2, False),
        (8, 128, 2, False),
        (24, 128, 2, False),
        (1, 128, 2, False),
    ],
)
def test_decode_by_descriptor_only_where_that_works(
    page: int, head_dim: int, element_size: int, described: bool
) -> None:
    entry = {"block": 64, "warps": 2, "stages": 3, "pack": 4, "tma": 1}
    chip = tuning.Chip(units=132, shared_bytes=196608, table={"decode": [entry]})
    sizes = {"batch": 128, "queries": 4, "max_length": 1024, "kv_heads": 8}
    sizes |= {"page_size": page, "head_dim": head_dim, "element_size": element_size}
    assert tuning.decode_tile(chip, **sizes).tma is described
    entry["tma"] = 0
    assert not tuning.decode_tile(chip, **sizes).tma


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("element_size", [1, 2, 4])
def test_tiles_fit_into_shared_memory(head_dim: int, element_size: int) -> None:
    safe = tuning.Chip(units=20, shared_bytes=tuning.SAFE_SHARED_BYTES, table={})
    for chip in (safe, h200()):
        width = tuning.next_power_of_2(head_dim) * element_size
        decode = tuning.decode_tile(
            chip,
            batch=4,
            queries=4,
            max_length=5000,
            kv_heads=2,
            head_dim=head_dim,
            element_size=element_size,
            page_size=16,
        )
        assert decode.stages * decode.block * 2 * width <= chip.shared_bytes
        for page in (1, 16, 128):
            extend = tuning.extend_tile(chip, head_dim=head_dim, element_size=element_size, page_size=page)
            used = (extend.stages * extend.block_n * 2 + extend.block_m) * width
            assert used <= chip.shared_bytes
            assert min(decode.block, extend.block_n, extend.block_m) >= 16


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("element_size", [2, 4])
def test_tree_tiles_fit_into_shared_memory(head_dim: int, element_size: int) -> None:
    safe = tuning.Chip(units=20, shared_bytes=tuning.SAFE_SHARED_BYTES, table={})
    for chip, page in itertools.product((safe, h200()), (1, 16, 128)):
        sizes = {"head_dim": head_dim, "element_size": element_size, "page_size": page}
        tile = tuning.tree_tile(chip, heads=8, kv_heads=2, **sizes)
        assert tile is not None
        width = tuning.next_power_of_2(head_dim) * element_size
        assert (tile.stages * tile.block_n * 2 + tile.block_m) * width <= chip.shared_bytes
        assert tile.programs >= chip.units
        assert tuning.tree_tile(chip, heads=200, kv_heads=1, **sizes) is None, (
            "a row's heads fill more than a tile"
        )


def test_who_knows_tree_attention() -> None:
    """Not where every layer has a window, and no backend whose bits must not depend on who shares what."""
    assert set(TritonAttention(spec(), PAGE, DEVICE).tree) == {2, 4}
    windows = msgspec.structs.replace(spec(), layers=(LayerSpec(window=8), LayerSpec(window=8)))
    assert TritonAttention(windows, PAGE, DEVICE).tree == {}
    some = msgspec.structs.replace(spec(), layers=(LayerSpec(window=8), LayerSpec()))
    assert set(TritonAttention(some, PAGE, DEVICE).tree) == {2, 4}
    assert not EXACT_BACKENDS.get("triton").tree
    assert not BACKENDS.get("cpu").tree
    assert not BACKENDS.get("torch_native").tree


def test_descriptors_are_used_where_a_tile_lies_in_one_page() -> None:
    def tma(chip: tuning.Chip, head_dim: int, page: int, element_size: int = 2) -> bool:
        tile = tuning.extend_tile(chip, head_dim=head_dim, element_size=element_size, page_size=page)
        assert not tile.tma or page % tile.block_n == 0
        return tile.tma

    assert tma(h200(), 128, 128)
    assert tma(h200(), 64, 128)
    assert not tma(h200(), 80, 128)
    assert not tma(h200(), 128, 16)
    assert not tma(h200(), 128, 128, element_size=4)
    assert not tma(tuning.Chip(units=20, shared_bytes=tuning.SAFE_SHARED_BYTES, table={}), 128, 128)
