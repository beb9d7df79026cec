"""GGUF files: random models written as a converter writes them, and real files against reference numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.config import ModelConfig
from radixlang.errors import ModelError, UnsupportedModelError, WeightError
from radixlang.layers.rotary import frequencies
from radixlang.models import load_spec
from radixlang.models.spec import RopeSpec
from tests.conftest import reference
from tests.models.paged import load, run_paged
from tests.models.test_parity import CASES, GEMMA, SMALL, expected, make, rows_of

gguf = pytest.importorskip("gguf")

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SANDWICH = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
Edit = Callable[[dict[str, np.ndarray], dict[str, Any]], None]


def gguf_name(name: str, names: dict[str, str]) -> str:
    """The converter's name of a Hugging Face tensor."""
    stem, _, kind = name.rpartition(".")
    if stem in names:
        return f"{names[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{names[part]}.{kind}"


def write(path: Path, model: Any, architecture: str, edit: Edit | None = None, quantized: bool = False) -> None:
    """`model` as a GGUF file: q and k rows of llama paired, Gemma's norms plus one; `edit` changes the result."""
    config = model.config
    names = SANDWICH if architecture in ("gemma2", "gemma3") else NAMES
    tensors: dict[str, np.ndarray] = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = value.float().numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            shape = array.shape
            array = array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if architecture.startswith("gemma") and "norm" in name:
            array = array + 1
        tensors[gguf_name(name, names)] = array
    values: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim if getattr(config, "head_dim", None) else 12,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    if edit is not None:
        edit(tensors, values)
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in values.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        (writer.add_float32 if isinstance(value, float) else add)(f"{architecture}.{key}", value)
    for name, array in tensors.items():
        array = np.ascontiguousarray(array)
        if quantized and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(path: Path, theirs: Any, dtype: str = "float32") -> None:
    ours = load(path, dtype=dtype)
    rows = rows_of(ours.spec.vocab_size)
    for row, logits in zip(rows, run_paged(ours, rows), strict=True):
        torch.testing.assert_close(logits, expected(theirs, row), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("case", ["llama", "llama-tied", "llama-multi-query", "qwen2", "qwen3", "gemma"])
def test_plain_families(tmp_path: Path, case: str, dtype: str) -> None:
    theirs = make(*CASES[case], tmp_path)
    path = tmp_path / "model.gguf"
    write(path, theirs, case.partition("-")[0])
    compare(path, theirs, dtype)


def test_biases_and_window_of_files_that_say_llama(tmp_path: Path) -> None:
    theirs = make(*CASES["llama-biases"], tmp_path)
    path = tmp_path / "model.gguf"
    write(path, theirs, "llama")
    compare(path, theirs)
    mistral = make(*CASES["mistral-window"], tmp_path)
    write(path, mistral, "llama", lambda t, v: v.update({"attention.sliding_window": 7}))
    compare(path, mistral)


def test_rope_divisors_of_llama3(tmp_path: Path) -> None:
    theirs = make(*CASES["llama-llama3"], tmp_path)
    rope = load_spec(ModelConfig(model_path=str(tmp_path))).layers[0].rope
    assert rope is not None
    scaled, plain = frequencies(rope)[0], frequencies(RopeSpec(theta=rope.theta, dim=rope.dim))[0]

    def edit(tensors: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        tensors["rope_freqs.weight"] = (plain / scaled).numpy()
        values["rope.freq_base"] = 1000.0

    path = tmp_path / "model.gguf"
    write(path, theirs, "llama", edit)
    compare(path, theirs)


def test_linear_rope_scaling(tmp_path: Path) -> None:
    theirs = make(*CASES["llama-linear"], tmp_path)
    settings = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.freq_base": 5000.0}
    path = tmp_path / "model.gguf"
    write(path, theirs, "llama", lambda t, v: v.update(settings))
    compare(path, theirs)
    assert load_spec(ModelConfig(model_path=str(path))).context_length == 128


def test_gemma2_with_its_unwritten_defaults(tmp_path: Path) -> None:
    theirs = make("Gemma2", GEMMA | {"query_pre_attn_scalar": 32, "attn_logit_softcapping": 50.0}, tmp_path)
    path = tmp_path / "model.gguf"
    write(path, theirs, "gemma2", lambda t, v: v.update({"attention.sliding_window": 8}))
    compare(path, theirs)


def test_gemma3_with_its_unwritten_defaults(tmp_path: Path) -> None:
    theirs = make("Gemma3", GEMMA | {"query_pre_attn_scalar": 32, "num_hidden_layers": 7}, tmp_path)
    path = tmp_path / "model.gguf"
    write(path, theirs, "gemma3", lambda t, v: v.update({"attention.sliding_window": 8, "rope.freq_base": 1e6}))
    compare(path, theirs)


def test_blocks_are_kept_as_they_are(tmp_path: Path) -> None:
    theirs = make("Llama", SMALL | {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}, tmp_path)
    path = tmp_path / "model.gguf"
    write(path, theirs, "llama", quantized=True)
    exact, rounded = load(path), load(path, dtype="auto")
    row = rows_of(97)[0]
    # The weights are the same; "auto" rounds activations to 16 bits.
    torch.testing.assert_close(run_paged(rounded, [row])[0], run_paged(exact, [row])[0], atol=1e-2, rtol=0)
    floats = 4 * sum(p.numel() for p in theirs.parameters())
    assert exact.weight_bytes == rounded.weight_bytes < 0.45 * floats


def _write_llama(path: Path, edit: Edit) -> None:
    write(path, make("Llama", {}, path.parent), "llama", edit)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t, v: t.pop("blk.1.ffn_up.weight"), "blk.1.ffn_up|model.layers.1.mlp.up_proj"),
        (lambda t, v: t.update({"blk.0.ffn_extra.weight": np.zeros((4, 4), np.float32)}), "blk.0.ffn_extra"),
        (lambda t, v: t.update({"blk.3.ffn_up.weight": np.zeros((80, 48), np.float32)}), "blk.3.ffn_up"),
        (lambda t, v: t.update({"blk.0.attn_q.weight": np.zeros((44, 48), np.float32)}), r"attn_q.*\[44, 48\]"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, edit: Edit, words: str) -> None:
    path = tmp_path / "model.gguf"
    _write_llama(path, edit)
    with pytest.raises(WeightError, match=words):
        load(path)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write_llama(path, lambda t, v: None)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightError, match=r"model\.gguf.*truncated"):
        load(path)


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write_llama(path, lambda t, v: v.update({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}))
    with pytest.raises(UnsupportedModelError, match="longrope"):
        load(path)
    _write_llama(path, lambda t, v: v.update({"expert_count": 8}))
    with pytest.raises(UnsupportedModelError, match="num_experts"):
        load(path)
    _write_llama(path, lambda t, v: v.pop("context_length"))
    with pytest.raises(ModelError, match=r"llama\.context_length"):
        load(path)
    writer = gguf.GGUFWriter(str(path), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="mamba"):
        load(path)


def _check_reference(path: Path, name: str, dtype: str, cases: int, steps: int) -> None:
    """Teacher forcing over the first steps: the ids are the argmax, log-probabilities within 1e-3 (1e-2 where
    activations are rounded)."""
    tolerance = 1e-3 if dtype == "float32" else 1e-2
    model = load(path, dtype=dtype)
    for case in reference(name)["cases"][:cases]:
        prompt, greedy = case["prompt_ids"], case["greedy_ids"][:steps]
        logits = run_paged(model, [(prompt + greedy)[:-1]], page_size=16, chunk=32)[0]
        logprobs = logits.log_softmax(-1)
        given = logprobs[len(prompt) - 1 :]
        assert given.argmax(-1).tolist() == greedy
        got = given[torch.arange(len(greedy)), torch.tensor(greedy)]
        torch.testing.assert_close(got, torch.tensor(case["greedy_logprobs"][:steps]), atol=tolerance, rtol=0)
        if case["prompt_logprobs"]:
            ids = torch.tensor(prompt[1:])
            got = logprobs[torch.arange(len(ids)), ids]
            torch.testing.assert_close(got, torch.tensor(case["prompt_logprobs"][1:]), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_real_smollm2(smollm2_path: Path, dtype: str) -> None:
    _check_reference(smollm2_path, "smollm2", dtype, cases=2, steps=24)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_real_gemma3(gemma3_path: Path, dtype: str) -> None:
    _check_reference(gemma3_path, "gemma3-270m", dtype, cases=4, steps=32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_real_qwen(qwen_path: Path, dtype: str) -> None:
    _check_reference(qwen_path, "qwen2.5-coder-0.5b", dtype, cases=4, steps=32)
