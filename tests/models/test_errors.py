"""Everything that can be wrong with a checkpoint is named in one sentence before anything is served."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixlang.config import ModelConfig
from radixlang.errors import ConfigError, ModelError, UnsupportedModelError, WeightError
from radixlang.models import load_model, load_spec
from radixlang.models.layout import decoder_layout
from tests.models.paged import edit_config

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete small model."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    spec = load_spec(ModelConfig(model_path=str(tmp_path)))
    save_file({k: torch.randn(s) for k, s in decoder_layout(spec).items()}, tmp_path / "model.safetensors")
    return tmp_path


def attempt(folder: Path, **options: Any) -> None:
    config = ModelConfig(model_path=str(folder), **options)
    load_model(load_spec(config), config, "cpu", torch.float32)


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def says(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert text.endswith(".")


def test_the_complete_model_loads_and_reports_progress(folder: Path) -> None:
    config = ModelConfig(model_path=str(folder), dtype="float32")
    seen: list[tuple[int, int]] = []
    spec = load_spec(config)
    model = load_model(spec, config, "cpu", torch.float32, lambda done, total: seen.append((done, total)))
    weights = sum(torch.Size(shape).numel() for shape in decoder_layout(spec).values())
    assert seen == sorted(seen)
    assert seen[-1] == (weights, weights)
    assert model.weight_bytes >= 4 * weights


def test_missing_tensor(folder: Path) -> None:
    change(folder, lambda t: t.__delitem__(Q))
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, Q, "lacks", str(folder))


def test_extra_tensor(folder: Path) -> None:
    change(folder, lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(24, 16)}))
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, "model.layers.2.mlp.up_proj.weight", "no place")


def test_known_leftovers_are_ignored(folder: Path) -> None:
    change(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    attempt(folder)


def test_a_tied_output_layer_may_be_in_the_file_only_as_a_copy(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, "lm_head.weight", "tie_word_embeddings")
    change(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    attempt(folder)


def test_misshapen_tensor(folder: Path) -> None:
    change(folder, lambda t: t.update({Q: torch.zeros(16, 17)}))
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, Q, "[16, 17]", "[16, 16]")


def test_wrong_dtype(folder: Path) -> None:
    change(folder, lambda t: t.update({Q: torch.zeros(16, 16, dtype=torch.int8)}))
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, Q, "I8", "BF16")


@pytest.mark.parametrize("keep", [0, 5, 300, -4])
def test_truncated_file(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, str(path), "truncated")


def test_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder / "exploded",))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    for path in (folder, folder / "pytorch_model.bin"):
        with pytest.raises(WeightError) as error:
            attempt(path)
        says(error, "pytorch_model.bin", "pickle", "safetensors")
    assert not (folder / "exploded").exists()


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, str(folder), "dummy")
    attempt(folder, load_format="dummy")


def test_shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first = {k: v for k, v in tensors.items() if "layers.0" in k}
    second = {k: v for k, v in tensors.items() if k not in first}
    save_file(first, folder / "a.safetensors")
    save_file(second, folder / "b.safetensors")
    with pytest.raises(WeightError, match="index"):
        attempt(folder)
    index = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    attempt(folder)
    path.write_text(json.dumps({"weight_map": index | {Q: "a.safetensors"}}))
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, Q, "a.safetensors")
    path.write_text('{"weight_map": 3}')
    with pytest.raises(WeightError, match="damaged"):
        attempt(folder)
    path.write_text(json.dumps({"weight_map": index}))
    (folder / "b.safetensors").unlink()
    with pytest.raises(WeightError) as error:
        attempt(folder)
    says(error, "b.safetensors", "missing")


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM"),
    "activation": ({"hidden_act": "relu2"}, "relu2"),
    "rope": ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    "partial rope": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "quantisation": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    "experts": ({"num_local_experts": 8}, "num_local_experts"),
    "multiplier": ({"attention_multiplier": 0.3}, "attention_multiplier"),
    "soft cap": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "window": ({"sliding_window": 64}, "sliding_window"),
    "slicing": ({"pretraining_tp": 2}, "pretraining_tp"),
    "layer type": (
        {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "chunked_attention"]},
        "chunked_attention",
    ),
    "dtype": ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    "own code": ({"architectures": None, "auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_config_is_named_before_weights_load(folder: Path, case: str) -> None:
    values, word = UNSUPPORTED[case]
    edit_config(folder, **values)
    with pytest.raises(UnsupportedModelError) as error:
        load_spec(ModelConfig(model_path=str(folder)))
    says(error, word)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"hidden_size": ...}, "hidden_size"),
        ({"hidden_size": "large"}, "hidden_size"),
        ({"hidden_size": 16.5}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "key-value heads"),
        ({"hidden_size": 17}, "17"),
        ({"rms_norm_eps": True}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -5.0}}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -4}}, "factor"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0}},
            "original_max_position_embeddings",
        ),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 0}}, "low_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, "high_freq_factor"),
        ({"vocab_size": math.inf}, "vocab_size"),
        ({"architectures": []}, "architectures"),
    ],
)
def test_bad_config_values_are_named(folder: Path, values: dict[str, Any], word: str) -> None:
    edit_config(folder, **values)
    with pytest.raises(ModelError) as error:
        load_spec(ModelConfig(model_path=str(folder)))
    says(error, word)


@pytest.mark.parametrize("value", ['"x"', "[[1]]", "{}", "-1", "true", "1.5"])
def test_bad_end_tokens_are_named_with_their_file(folder: Path, value: str) -> None:
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {value}}}')
    with pytest.raises(ModelError) as error:
        load_spec(ModelConfig(model_path=str(folder)))
    says(error, "generation_config.json has eos_token_id")


def test_neutral_keys_are_fine(folder: Path) -> None:
    plain = load_spec(ModelConfig(model_path=str(folder)))
    edit_config(
        folder,
        attention_dropout=0.1,
        use_cache=True,
        pretraining_tp=1,
        rope_scaling=None,
        partial_rotary_factor=1.0,
        quantization_config=None,
        sliding_window=None,
        auto_map={"AutoModel": "evil.Model"},
    )
    assert load_spec(ModelConfig(model_path=str(folder))) == plain


def test_code_of_a_folder_never_runs(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    edit_config(folder, auto_map={"AutoModelForCausalLM": "evil.Model"})
    attempt(folder, trust_remote_code=True)


def test_unreadable_configs(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError) as error:
        attempt(folder)
    says(error, "config.json", "JSON")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError) as error:
        attempt(folder)
    says(error, "config.json", ".gguf")


def test_a_path_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*args: Any, **options: Any) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    with pytest.raises(ModelError) as error:
        load_spec(ModelConfig(model_path="nobody/has-this-model"))
    says(error, "nobody/has-this-model", "file, folder", "hub", "no route to host")


def test_load_format_must_fit(folder: Path) -> None:
    with pytest.raises(ModelError) as error:
        attempt(folder, load_format="gguf")
    says(error, "--load-format gguf", "folder")
    (folder / "x.gguf").write_bytes(b"nonsense")
    with pytest.raises(ModelError) as error:
        attempt(folder / "x.gguf")
    says(error, "x.gguf", "not a GGUF file")


def test_context_length(folder: Path) -> None:
    assert load_spec(ModelConfig(model_path=str(folder), context_length=10)).context_length == 10
    with pytest.raises(ConfigError) as error:
        load_spec(ModelConfig(model_path=str(folder), context_length=65))
    says(error, "65", "64", "--json-model-override-args")
    longer = ModelConfig(
        model_path=str(folder),
        context_length=65,
        json_model_override_args='{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}',
    )
    assert load_spec(longer).context_length == 65


def test_an_override_that_another_setting_hides(folder: Path) -> None:
    def theta(stored: dict[str, Any] | None, overrides: dict[str, Any]) -> float:
        (folder / "config.json").write_text(json.dumps(CONFIG | {"rope_parameters": stored}))
        model = ModelConfig(model_path=str(folder), json_model_override_args=json.dumps(overrides))
        rope = load_spec(model).layers[0].rope
        assert rope is not None
        return rope.theta

    assert theta(None, {"rope_theta": 5000.0}) == 5000.0
    assert theta({"rope_type": "default"}, {"rope_theta": 5000.0}) == 5000.0
    whole = {"rope_type": "default", "rope_theta": 9.0}
    assert theta(whole, {"rope_parameters": {**whole, "rope_theta": 6000.0}}) == 6000.0
    with pytest.raises(ModelError) as error:
        theta(whole, {"rope_theta": 5000.0})
    says(error, "--json-model-override-args", "rope_theta", "override rope_parameters instead")


def test_stop_ids_of_both_files(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert load_spec(ModelConfig(model_path=str(folder))).eos_ids == (2, 7)


def test_dummy_weights_are_the_same_every_time(folder: Path) -> None:
    from tests.models.paged import load, run_paged

    first, second = (run_paged(load(folder, load_format="dummy"), [[3, 4, 5]])[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    assert first.std() > 0


@pytest.mark.parametrize(
    ("family", "removed", "read", "want"),
    [
        ("Mistral", "sliding_window", lambda spec: spec.layers[0].window, 4096),
        ("Gemma2", "attn_logit_softcapping", lambda spec: spec.attention_softcap, 50.0),
        ("Gemma2", "final_logit_softcapping", lambda spec: spec.final_softcap, 30.0),
        ("Qwen3", "head_dim", lambda spec: spec.head_dim, 128),
        ("Gemma3", "head_dim", lambda spec: spec.head_dim, 256),
    ],
)
def test_absent_keys_have_the_familys_default(
    folder: Path, family: str, removed: str, read: Callable[[Any], Any], want: float
) -> None:
    edit_config(folder, architectures=[f"{family}ForCausalLM"], **{removed: ...})
    assert read(load_spec(ModelConfig(model_path=str(folder)))) == want
