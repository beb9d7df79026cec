"""Every family against `transformers`: same random weights, float32, through pages and chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.config import ModelConfig
from radixlang.models import load_spec
from tests.models.paged import edit_config, load, randomize, run_paged

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
GEMMA = SMALL | {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}}),
    "llama-llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama-yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-window-tied": (
        "Qwen3",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma2-uncapped": ("Gemma2", GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("Gemma3", GEMMA | {"num_hidden_layers": 7}),
    "gemma3-scaled": (
        "Gemma3",
        GEMMA
        | {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
    ),
}


def make(name: str, values: dict[str, Any], folder: Path) -> Any:
    """A random `transformers` model saved in `folder`."""
    config_name = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**(SMALL | values))
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


def rows_of(vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in (29, 17, 1, 22)]


def expected(model: Any, row: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([row])).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    theirs = make(*CASES[case], tmp_path)
    ours = load(tmp_path)
    rows = rows_of(ours.spec.vocab_size)
    for row, logits in zip(rows, run_paged(ours, rows), strict=True):
        want = expected(theirs, row)
        assert want.std() > 0.2  # the comparison says something
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_packed_cpu_weights_equal_transformers(case: str, tmp_path: Path) -> None:
    theirs = make(*CASES[case], tmp_path)
    ours = load(tmp_path, dtype="auto")
    rows = rows_of(ours.spec.vocab_size)
    for row, logits in zip(rows, run_paged(ours, rows), strict=True):
        torch.testing.assert_close(logits, expected(theirs, row), atol=1e-4, rtol=0)


def test_bfloat16_weights_are_kept_exactly_on_the_cpu(tmp_path: Path) -> None:
    name, values = CASES["qwen2"]
    make(name, values, tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    ours = load(tmp_path, dtype="auto")
    assert ours.spec.checkpoint_dtype == "bfloat16"
    row = rows_of(97)[0]
    torch.testing.assert_close(run_paged(ours, [row])[0], expected(theirs, row), atol=1e-4, rtol=0)


def test_page_size_and_chunk_do_not_matter(tmp_path: Path) -> None:
    make(*CASES["gemma2"], tmp_path)
    ours = load(tmp_path)
    rows = rows_of(97)
    want = run_paged(ours, rows, page_size=64, chunk=64)
    for page_size, chunk in ((1, 1), (3, 2), (16, 9)):
        for got, logits in zip(run_paged(ours, rows, page_size, chunk), want, strict=True):
            torch.testing.assert_close(got, logits, atol=2e-5, rtol=0)


LLAMA3 = CASES["llama-llama3"][1]["rope_parameters"]


@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_configs_of_older_libraries_mean_the_same(tmp_path: Path, type_key: str) -> None:
    make("Llama", {"rope_parameters": LLAMA3, "dtype": "float32"}, tmp_path)
    new = load_spec(ModelConfig(model_path=str(tmp_path)))
    scaling = {k: v for k, v in LLAMA3.items() if k not in ("rope_theta", "rope_type")} | {type_key: "llama3"}
    edit_config(tmp_path, rope_parameters=..., rope_theta=1000.0, rope_scaling=scaling)
    edit_config(tmp_path, dtype=..., torch_dtype="float32")
    assert load_spec(ModelConfig(model_path=str(tmp_path))) == new


def test_gemma3_configs_of_older_libraries_mean_the_same(tmp_path: Path) -> None:
    make("Gemma3", GEMMA | {"num_hidden_layers": 7}, tmp_path)
    new = load_spec(ModelConfig(model_path=str(tmp_path)))
    edit_config(tmp_path, rope_parameters=..., layer_types=..., _sliding_window_pattern=...)
    edit_config(tmp_path, sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=10000.0)
    assert load_spec(ModelConfig(model_path=str(tmp_path))) == new


def test_gemma3_with_vision_serves_its_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = {k: v for k, v in (SMALL | GEMMA).items() if k != "attn_implementation"}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=96
    )
    config._attn_implementation = "eager"
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
    randomize(theirs)
    theirs.save_pretrained(tmp_path)
    with caplog.at_level("INFO"):
        ours = load(tmp_path)
    assert "tensors of other parts are left out" in caplog.text
    row = [t % 90 + 3 for t in rows_of(80)[0]]
    torch.testing.assert_close(run_paged(ours, [row])[0], expected(theirs, row), atol=1e-4, rtol=0)


def test_shards_and_a_base_model_without_prefix(tmp_path: Path) -> None:
    theirs = make("Qwen3", CASES["qwen3-window-tied"][1], tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    theirs.model.save_pretrained(tmp_path / "base")
    edit_config(tmp_path / "base", architectures=["Qwen3ForCausalLM"])
    row = rows_of(97)[1]
    want = run_paged(load(tmp_path / "whole"), [row])[0]
    for kind in ("shards", "base"):
        assert torch.equal(run_paged(load(tmp_path / kind), [row])[0], want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_arithmetic_is_near(tmp_path: Path, dtype: torch.dtype) -> None:
    from radixlang.models import load_model

    theirs = make("Gemma3", CASES["gemma3"][1], tmp_path)
    config = ModelConfig(model_path=str(tmp_path), dtype=str(dtype).removeprefix("torch."))
    ours = load_model(load_spec(config), config, "cpu", dtype)
    row = rows_of(97)[1]
    logits = run_paged(ours, [row])[0]
    assert logits.dtype == torch.float32
    want = expected(theirs, row)
    assert (logits - want).abs().mean() < 0.05 * want.std()
