"""KV pages from memory figures."""

from __future__ import annotations

from typing import Any

import pytest

from radixlang.errors import ConfigError
from radixlang.memory.sizing import Memory, kv_pages, wanted_pages
from radixlang.models.spec import LayerSpec, ModelSpec

GIB = 1 << 30


def spec(encoder: bool = False) -> ModelSpec:
    # 2 * 30 * 3 * 64 * 4 = 46,080 bytes of KV a token in float32
    return ModelSpec(
        family="t", architecture="T", vocab_size=8, hidden_size=8, intermediate_size=8, num_heads=9,
        num_kv_heads=3, head_dim=64, layers=(LayerSpec(),) * 30, context_length=8192, encoder=encoder,
    )  # fmt: skip


def pages(memory: Memory, **values: Any) -> int:
    page_bytes = spec(values.pop("encoder", False)).kv_bytes_per_token(4) * 16
    share = {"fraction": values.pop("fraction", None), "graph_bytes": values.pop("graph_bytes", 0)}
    most: dict[str, Any] = {"max_running": 64, "context_length": 8192, "max_total_tokens": None}
    return kv_pages(page_bytes, memory, wanted_pages(page_size=16, **(most | values)), **share)


def cpu(free: float, total: float = 32, weights: float = 0.5) -> Memory:
    return Memory(True, int(total * GIB), int(free * GIB), int(weights * GIB))


PAGE = 46_080 * 16


def test_cpu_takes_a_quarter_of_what_is_free() -> None:
    assert pages(cpu(16)) == 4 * GIB // PAGE


def test_cpu_takes_eight_gib_at_most() -> None:
    assert pages(cpu(1000, total=1024)) == 8 * GIB // PAGE


def test_never_more_than_the_running_requests_can_use() -> None:
    assert pages(cpu(1000, total=1024), max_running=4, context_length=1000) == 4 * 63 + 1


def test_max_total_tokens_is_a_cap() -> None:
    assert pages(cpu(16), max_total_tokens=1000) == 62 + 1
    assert pages(cpu(16), max_total_tokens=10**9) == pages(cpu(16))


def test_fraction_is_of_the_whole_and_includes_weights() -> None:
    assert pages(cpu(16), fraction=0.1) == int((int(32 * GIB * 0.1) - GIB // 2) // PAGE)
    accelerator = Memory(False, 100 * GIB, 80 * GIB, 15 * GIB)
    assert pages(accelerator, fraction=0.5, max_running=10_000) == 30 * GIB // PAGE
    # What others hold counts as well as the weights.
    assert pages(accelerator, fraction=0.9, max_running=10_000) == 70 * GIB // PAGE


def test_graphs_take_from_the_default_share_alone() -> None:
    gpu = Memory(False, 80 * GIB, 79 * GIB, GIB // 2)
    most = {"context_length": 8192, "max_running": 512}
    assert pages(gpu, graph_bytes=GIB, **most) == pytest.approx(pages(gpu, **most) - GIB / PAGE, abs=1)
    assert pages(gpu, graph_bytes=GIB, fraction=0.8, **most) == pages(gpu, fraction=0.8, **most)


def test_too_little_memory_names_numbers_and_flag() -> None:
    with pytest.raises(ConfigError, match=r"--mem-fraction-static"):
        pages(cpu(0.01))
    with pytest.raises(ConfigError, match=r"15360 MiB of weights"):
        pages(Memory(False, 16 * GIB, 1 * GIB, 15 * GIB))
    with pytest.raises(ConfigError, match=r"0 MiB are left even without weights"):
        pages(cpu(16, weights=0), fraction=1e-9)
    with pytest.raises(ConfigError, match=r"--max-total-tokens 16 .* 128 tokens"):
        pages(cpu(16), max_total_tokens=16)


def test_short_contexts_need_less() -> None:
    assert pages(cpu(16), context_length=20, max_running=1) == 3
    assert pages(cpu(16), context_length=20, max_running=3, max_total_tokens=32) == 3


def test_an_encoder_has_pages_on_paper_only() -> None:
    assert pages(cpu(0.001), encoder=True, context_length=512, max_running=2) == 2 * 32 + 1
