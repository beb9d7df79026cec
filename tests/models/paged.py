"""A tiny driver: several token lists through a model's paged and chunked path, logits of every position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from radixlang.attention.torch import TorchAttention
from radixlang.config import ModelConfig
from radixlang.forward import ForwardBatch, ForwardContext, forwarding
from radixlang.models import Model, load_model, load_spec
from radixlang.models.spec import ModelSpec


def load(path: Path, dtype: str = "float32", **options: Any) -> Model:
    """The model at `path`, computing in float32."""
    config = ModelConfig(model_path=str(path), dtype=dtype, **options)
    return load_model(load_spec(config), config, "cpu", torch.float32)


def caches(spec: ModelSpec, pages: int, page_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K and V pages full of NaN: reading a slot that was never written shows."""
    shape = (pages, page_size, spec.num_kv_heads, spec.head_dim)
    return [(torch.full(shape, torch.nan), torch.full(shape, torch.nan)) for _ in spec.layers]


def run_paged(
    model: Model, rows: list[list[int]], page_size: int = 4, chunk: int = 5, seed: int = 0
) -> list[torch.Tensor]:
    """Logits [len(row), vocab] of each row; rows advance together, `chunk` tokens a step (1, 2, … of them for
    the later rows, so that lengths and query counts differ), over pages in a random order."""
    spec = model.spec
    most = -(-max(map(len, rows)) // page_size)
    order = torch.randperm(len(rows) * most, generator=torch.Generator().manual_seed(seed)) + 1
    table = torch.zeros(len(rows) + 1, most, dtype=torch.int32)
    table[1:] = order.view(len(rows), most)
    kv = caches(spec, len(rows) * most + 1, page_size)
    attention = TorchAttention(spec, page_size, torch.device("cpu"))
    out: list[list[torch.Tensor]] = [[] for _ in rows]
    done = [0] * len(rows)
    while any(d < len(row) for d, row in zip(done, rows, strict=True)):
        grants = {
            b: min(max(chunk - b, 1), len(row) - done[b]) for b, row in enumerate(rows) if done[b] < len(row)
        }
        spans = {b: torch.arange(done[b], done[b] + n) for b, n in grants.items()}
        ids = torch.tensor([t for b, n in grants.items() for t in rows[b][done[b] : done[b] + n]])
        positions = torch.cat(list(spans.values()))
        slots = torch.cat(
            [table[b + 1, at // page_size].long() * page_size + at % page_size for b, at in spans.items()]
        )
        for b, n in grants.items():
            done[b] += n
        lengths = [done[b] for b in grants]
        batch = ForwardBatch(
            input_ids=ids,
            positions=positions,
            slots=slots,
            rows=torch.tensor([b + 1 for b in grants], dtype=torch.int32),
            query_starts=torch.tensor([0, *grants.values()]).cumsum(0).int(),
            lengths=torch.tensor(lengths, dtype=torch.int32),
            page_table=table,
            page_size=page_size,
            max_query=max(grants.values()),
            max_length=max(lengths),
        )
        with torch.inference_mode(), forwarding(ForwardContext(batch, attention, attention.plan(batch), kv)):
            hidden = model(ids, positions)
            logits = model.logits(hidden)
        for b, part in zip(grants, logits.split(list(grants.values())), strict=True):
            out[b].append(part)
    return [torch.cat(parts) for parts in out]


def randomize(module: torch.nn.Module, seed: int = 0) -> None:
    """Fill every parameter, biases and norms included, so that nothing can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.3)


def edit_config(folder: Path, **values: Any) -> None:
    """Change keys of a saved config; a value of `...` removes the key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
