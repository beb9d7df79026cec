"""`--enable-deterministic-inference` by the Triton kernels: compiled on a GPU, elsewhere interpreted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.attention.exact import ExactTritonAttention  # noqa: E402
from radixlang.config import Config  # noqa: E402
from radixlang.executor import exactness  # noqa: E402
from radixlang.executor.build import build_executor  # noqa: E402
from radixlang.layers.exact_ops import ExactOps  # noqa: E402
from radixlang.models import loader  # noqa: E402
from tests.executor.exact_settings import Settings  # noqa: E402
from tests.executor.test_build import LLAMA  # noqa: E402

GEMMA = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 37,
    "attn_logit_softcapping": 20.0,
    "final_logit_softcapping": 10.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
ROUNDS, LENGTHS, NEW = (40, [1, 3, 300, 77, 640, 9, 250], 4) if DEVICE == "cuda" else (2, [1, 11, 20], 1)


def build(folder: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    (folder / "config.json").write_text(
        json.dumps(LLAMA | {"max_position_embeddings": 1024, "num_hidden_layers": 1} | config)
    )
    flat: dict[str, Any] = {"model_path": str(folder), "load_format": "dummy", "device": DEVICE, "page_size": 8}
    flat |= {"dtype": "bfloat16" if DEVICE == "cuda" else "float16", "max_running_requests": 8}
    flat |= {"enable_deterministic_inference": True, "attention_backend": "triton", "max_total_tokens": 8192}
    if DEVICE == "cpu":  # where the flag means the CPU's kernels
        monkeypatch.setattr(exactness, "check", lambda *_: None)
        monkeypatch.setattr(loader, "choose_method", lambda *_: "exact")
        monkeypatch.setattr(loader, "choose_ops", lambda *_: "triton_exact")
    return build_executor(Config.from_flat(**flat).resolve(), lambda *_: None)[0]


@pytest.mark.parametrize("config", [{"vocab_size": 131}, *[GEMMA] * (DEVICE == "cuda")])
def test_a_sequence_has_the_same_numbers_in_any_step(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = build(tmp_path, config, monkeypatch)
    assert isinstance(executor.attention, ExactTritonAttention)
    assert isinstance(executor.model.ops, ExactOps)
    settings = Settings(executor, 8, LENGTHS, new=NEW, seed=1)
    assert sum(settings.try_one() for _ in range(ROUNDS)) >= 2 * ROUNDS
    executor.close()
