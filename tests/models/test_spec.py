"""The front door that both columns use: light, and complete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from radixlang.models import FAMILIES
from radixlang.models.spec import LayerSpec, ModelSpec
from tests.models.test_errors import CONFIG


def test_load_spec_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code = (
        "import sys; from radixlang.config import ModelConfig; from radixlang.models import load_spec; "
        f"print(load_spec(ModelConfig(model_path={str(tmp_path)!r})).family, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["llama", "False"]


@pytest.mark.parametrize("name", FAMILIES.names())
def test_every_family_resolves(name: str) -> None:
    assert callable(FAMILIES.get(name).spec)


def test_sizes() -> None:
    spec = ModelSpec(
        family="x",
        architecture="X",
        vocab_size=10,
        hidden_size=32,
        intermediate_size=8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        layers=(LayerSpec(), LayerSpec(window=3)),
        context_length=9,
    )
    assert spec.kv_bytes_per_token(2) == 2 * 2 * 2 * 16 * 2
    assert spec.scale == 0.25
    assert spec.num_layers == 2
