"""BERT against `transformers`: random weights, rows of different lengths in one step; and the real MiniLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.config import Config, ModelConfig
from radixlang.errors import EngineError, UnsupportedModelError
from radixlang.executor.build import build_executor
from radixlang.forward import ForwardBatch, ForwardContext, forwarding
from radixlang.layers.pooling import pool
from radixlang.models import Model, load_spec
from tests.models.paged import load, randomize

transformers = pytest.importorskip("transformers")


def step(rows: list[list[int]]) -> ForwardBatch:
    """All rows whole, in one step; an empty list is a padded row."""
    counts = [len(row) for row in rows]
    return ForwardBatch(
        input_ids=torch.tensor([t for row in rows for t in row]),
        positions=torch.cat([torch.arange(n) for n in counts]),
        slots=torch.zeros(sum(counts), dtype=torch.int64),
        rows=torch.arange(len(rows), dtype=torch.int32),
        query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
        lengths=torch.tensor(counts, dtype=torch.int32),
        page_table=torch.zeros(len(rows), 1, dtype=torch.int32),
        page_size=1,
        max_query=max(counts),
        max_length=max(counts),
    )


def encode(model: Model, rows: list[list[int]]) -> torch.Tensor:
    """Hidden states [T, hidden]."""
    batch = step(rows)
    backend: Any = None
    with torch.inference_mode(), forwarding(ForwardContext(batch, backend, None, [])):
        return model(batch.input_ids, batch.positions)


def make(folder: Path, **values: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=40,
        **values,
    )
    model = transformers.BertModel(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "silu"])
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_hidden_states_equal_transformers(tmp_path: Path, activation: str, dtype: str) -> None:
    theirs = make(tmp_path, hidden_act=activation)
    ours = load(tmp_path, dtype=dtype)
    rows = [[5, 9, 70, 3], list(range(40)), [], [8]]
    parts = encode(ours, rows).split([len(row) for row in rows])
    for row, hidden in zip(rows, parts, strict=True):
        if row:
            with torch.inference_mode():
                want = theirs(torch.tensor([row])).last_hidden_state[0]
            torch.testing.assert_close(hidden, want, atol=1e-4, rtol=0)


def test_an_encoder_has_no_logits(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(EngineError, match="encoder"):
        load(tmp_path).logits(torch.zeros(1, 32))


def test_tiers_below_no_kv_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    told: list[str] = []
    monkeypatch.setattr("radixlang.executor.build.log.warning", lambda text, *values: told.append(text % values))
    for flags in ({}, {"enable_hierarchical_cache": True}, {"cache_dir": str(tmp_path / "pages")}):
        told.clear()
        config = Config.from_flat(model_path=str(tmp_path), device="cpu", num_threads=1, **flags).resolve()
        executor, _ = build_executor(config, lambda *_: None)
        executor.close()
        assert len([text for text in told if "this model keeps no KV of prompts" in text]) == len(flags)


def test_sentence_settings(tmp_path: Path) -> None:
    make(tmp_path)
    config = ModelConfig(model_path=str(tmp_path))
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 30}')
    spec = load_spec(config)
    assert (spec.pooling, spec.normalize, spec.context_length) == ("cls", False, 30)
    assert spec.encoder
    assert spec.kv_bytes_per_token(4) == 0
    types = ["Transformer", "Pooling", "Normalize"]
    modules = [{"type": f"sentence_transformers.models.{name}"} for name in types]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert load_spec(config).normalize
    pooling.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(UnsupportedModelError, match="pooling_mode_max_tokens"):
        load_spec(config)


def test_the_real_minilm(minilm_path: Path) -> None:
    spec = load_spec(ModelConfig(model_path=str(minilm_path)))
    assert (spec.pooling, spec.normalize, spec.hidden_size, spec.num_layers) == ("mean", True, 384, 6)
    ours = load(minilm_path, dtype="auto")
    theirs = transformers.BertModel.from_pretrained(minilm_path, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_path)
    texts = ["A cat sits on the mat.", "The kitten is sitting on a rug.", "Stock prices fell sharply today."]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    hidden = encode(ours, rows)
    with torch.inference_mode():
        want = torch.cat([theirs(torch.tensor([row])).last_hidden_state[0] for row in rows])
    torch.testing.assert_close(hidden, want, atol=1e-4, rtol=0)
    vectors = pool(hidden, step(rows).query_starts, spec.pooling, spec.normalize)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5 > 0.2 > far
