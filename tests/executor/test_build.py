"""Building an executor: backend choice, sizes, trial step; random weights, and no files but a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.attention import BACKENDS, EXACT_BACKENDS, AttentionBackend
from radixlang.attention.torch import TorchAttention
from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.executor.build import build_executor, choose_attention
from radixlang.models.spec import ModelSpec
from radixlang.registry import Registry
from tests.executor.tiny import Host, Row, TinyModel

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 120,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def build(folder: Path, **values: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(LLAMA))
    told: list[tuple[str, int, int]] = []
    flat = {"model_path": str(folder), "load_format": "dummy", "device": "cpu", **values}
    executor, shape = build_executor(Config.from_flat(**flat).resolve(), lambda *step: told.append(step))
    return executor, shape, told


def test_shape_and_first_tokens(tmp_path: Path) -> None:
    executor, shape, told = build(tmp_path, page_size=8, max_running_requests=5)
    assert (shape.max_rows, shape.page_size, shape.context_length) == (6, 8, 256)
    assert shape.num_pages == 5 * 32 + 1
    assert (shape.vocab_size, shape.eos_ids, shape.encoder) == (120, (2,), False)
    assert shape.dtype == "float32"
    assert shape.kv_bytes == 2 * 2 * 2 * 16 * 4 * shape.num_pages * 8
    assert shape.weight_bytes > 0
    assert shape.device.startswith("cpu: ")
    assert told[-1] == ("trial step", 1, 1)
    host = Host(8)
    row = Row(1, [5, 6, 7])
    first = executor.result(executor.launch(host.plan([(row, 3)])))
    again = Row(2, [5, 6, 7])
    halves = [executor.launch(host.plan([(again, n)])) for n in (2, 1)]
    assert first.tokens.tolist() == executor.result(halves[1]).tokens.tolist()
    assert 0 <= first.tokens[0] < 120
    executor.close()


def test_a_small_pool_shortens_the_context(tmp_path: Path) -> None:
    executor, shape, _ = build(tmp_path, page_size=16, max_total_tokens=160)
    assert shape.num_pages == 11
    assert shape.context_length == 160
    executor.close()


def test_cache_dtype_halves_the_pool(tmp_path: Path) -> None:
    executor, shape, _ = build(tmp_path, page_size=16, max_running_requests=2, kv_cache_dtype="bfloat16")
    assert shape.kv_bytes == 2 * 2 * 2 * 16 * 2 * shape.num_pages * 16
    row = Row(1, list(range(3, 20)))
    assert np.all(executor.result(executor.launch(Host(16).plan([(row, 17)]))).tokens >= 0)
    executor.close()


def test_named_backend_is_taken(tmp_path: Path) -> None:
    executor, shape, _ = build(tmp_path, attention_backend="torch_native")
    assert shape.attention_backend == "torch_native"
    assert isinstance(executor.attention, TorchAttention)
    executor.close()


def test_auto_takes_the_first_that_can_and_says_why_none_can(monkeypatch: pytest.MonkeyPatch) -> None:
    spec: ModelSpec = TinyModel().spec
    monkeypatch.setattr("radixlang.kernels.cpu.available", lambda: False)
    assert choose_attention("auto", spec, "cpu")[0] == "torch_native"
    with pytest.raises(ConfigError, match=r"--attention-backend cpu .* numba"):
        choose_attention("cpu", spec, "cpu")
    monkeypatch.setattr(TorchAttention, "supports", staticmethod(lambda spec, device: "No torch today."))
    with pytest.raises(ConfigError, match=r"numba.*No torch today"):
        choose_attention("auto", spec, "cpu")
    with pytest.raises(ConfigError, match=r"numba: pip install \S+\.$"):
        choose_attention("cpu", spec, "cpu")


@pytest.mark.parametrize(
    ("wish", "backends"), [("fa3", BACKENDS), ("triton", BACKENDS), ("triton", EXACT_BACKENDS)]
)
def test_a_refusal_advises_a_backend_of_the_same_table(
    wish: str, backends: Registry[type[AttentionBackend]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixlang.kernels.tuning.interpreted", lambda: False)
    spec: ModelSpec = TinyModel().spec
    taken = choose_attention("auto", spec, "cpu", backends)[0]
    with pytest.raises(ConfigError, match=rf"--attention-backend {wish} .* Use auto, which takes {taken}\.$"):
        choose_attention(wish, spec, "cpu", backends)


def test_one_process_does_not_wait_for_ranks_that_nobody_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tp-size 2 needs a process for each rank"):
        build(tmp_path, tp_size=2)


def test_bad_sizes_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens 10 "):
        build(tmp_path, max_total_tokens=10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_total_tokens": 16}, "--max-total-tokens 16 is too small: at least 128 tokens"),
        ({"max_running_requests": 60_000}, r"--max-running-requests 60000 needs 0\.1 GiB of host memory"),
        (
            {"hicache_size": 1e-7, "enable_hierarchical_cache": True},
            r"--hicache-size 1e-07 \(GB\) would not hold one page of KV, which has 0.0\d+ MB",
        ),
        (
            {"mem_fraction_static": 1e-9},
            r"No room for KV pages: 0 MiB are left even without weights .* 128 tokens",
        ),
        ({"mem_fraction_static": 1e-9, "page_size": 128}, "raise --mem-fraction-static"),
    ],
)
def test_sizes_that_cannot_work_are_said_before_weights_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("radixlang.executor.build.load_model", lambda *_: pytest.fail("the weights were loaded"))
    monkeypatch.setattr("radixlang.executor.build.free_host_memory", lambda: 2**20)
    with pytest.raises(ConfigError, match=words):
        build(tmp_path, **options)


class SmallAccelerator:
    """Of memory for the KV, and for half of the weights beside it."""

    device = torch.device("cuda")

    def total_memory(self) -> int:
        return 400_000

    free_memory = total_memory

    def default_dtype(self, stored: str) -> torch.dtype:
        return torch.bfloat16


@pytest.mark.parametrize(("dtype", "mebibytes"), [("bfloat16", 10), ("float32", 20)])
def test_weights_without_room_are_refused_before_they_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, mebibytes: int
) -> None:
    monkeypatch.setattr("radixlang.executor.build.find_platform", lambda *_: SmallAccelerator())
    monkeypatch.setattr("radixlang.executor.build.load_model", lambda *_: pytest.fail("weights were loaded"))
    monkeypatch.setitem(LLAMA, "vocab_size", 5 * 2**20 // 128)
    with pytest.raises(ConfigError, match=f"beside {mebibytes} MiB of weights .* take a smaller model"):
        build(tmp_path, dtype=dtype, attention_backend="torch_native", max_running_requests=1, device="cuda")
