"""`--enable-deterministic-inference` on the CPU: the same numbers in any batch, chunk and prefix hit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.attention.exact import ExactCpuAttention
from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.executor import exactness
from radixlang.executor.build import build_executor
from radixlang.kernels.cpu import available
from tests.executor.exact_settings import Settings
from tests.executor.test_build import LLAMA
from tests.executor.tiny import TinyModel

needs_kernels = pytest.mark.skipif(not available(), reason="numba is not installed, so there are no CPU kernels")


def build(folder: Path, config: dict[str, Any], **values: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    flat = {"model_path": str(folder), "load_format": "dummy", "device": "cpu", "num_threads": 2, **values}
    return build_executor(
        Config.from_flat(**flat, enable_deterministic_inference=True).resolve(), lambda *_: None
    )[0]


@needs_kernels
@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": 131},
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": 37,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "torch_dtype": "bfloat16",
        },
    ],
)
def test_a_sequence_has_the_same_numbers_in_any_step(tmp_path: Path, config: dict[str, Any], dtype: str) -> None:
    executor = build(tmp_path, config, page_size=8, max_running_requests=8, dtype=dtype)
    assert isinstance(executor.attention, ExactCpuAttention)
    settings = Settings(executor, 8, [1, 3, 40, 77, 130, 9], new=6, seed=1)
    assert sum(settings.try_one() for _ in range(12)) > 100
    executor.close()


@needs_kernels
def test_without_the_flag_the_test_above_would_fail(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    flat = {"model_path": str(tmp_path), "load_format": "dummy", "device": "cpu", "page_size": 8}
    executor = build_executor(Config.from_flat(**flat, max_running_requests=8).resolve(), lambda *_: None)[0]
    settings = Settings(executor, 8, [40, 77, 130], new=6, seed=1)
    with pytest.raises(AssertionError, match="sequence"):
        sum(settings.try_one() for _ in range(20))
    with pytest.raises(ConfigError, match=r"cannot be kept on .* leave the flag out"):
        exactness.prove(executor)
    executor.close()


@needs_kernels
def test_the_proof_holds_with_the_flag(tmp_path: Path) -> None:
    executor = build(tmp_path, {}, page_size=16, max_running_requests=2)
    exactness.prove(executor)
    executor.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tp_size": 2}, "--tp-size must be 1 with --enable-deterministic-inference"),
        ({"kv_cache_dtype": "float16"}, "--kv-cache-dtype must be auto"),
        ({"is_embedding": True}, "--is-embedding must be left out"),
        ({"attention_backend": "torch_native"}, "--attention-backend 'torch_native' .* triton, cpu"),
    ],
)
def test_what_is_not_covered_is_refused(values: dict[str, Any], message: str) -> None:
    config = Config.from_flat(model_path="x", enable_deterministic_inference=True, **values)
    with pytest.raises(ConfigError, match=message):
        config.resolve()


@pytest.mark.parametrize(
    ("kind", "dtype", "encoder", "message"),
    [
        ("cpu", torch.float32, True, "encoder"),
        ("cpu", torch.bfloat16, False, "float32 on a CPU"),
        ("cuda", torch.float32, False, "16 bits on a GPU"),
    ],
)
def test_models_and_dtypes_that_are_refused(kind: str, dtype: torch.dtype, encoder: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        exactness.check(TinyModel(encoder=encoder).spec, kind, dtype)
    exactness.check(TinyModel().spec, "cuda", torch.bfloat16)


def test_a_head_dimension_the_kernels_do_not_take(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"multiples of 16|numba"):
        build(tmp_path, {"num_attention_heads": 8, "num_key_value_heads": 8}, page_size=8)
