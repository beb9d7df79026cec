"""What the executor tests run on: a two-layer attention model, its naive twin, and a writer of plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from radixlang.attention.torch import TorchAttention
from radixlang.executor.launch import DeviceExecutor
from radixlang.forward import current
from radixlang.memory.kv_pool import KvPool
from radixlang.memory.request_table import RequestTable
from radixlang.models.spec import LayerSpec, ModelSpec
from radixlang.plan import LogprobWish, RowSetup, StepPlan
from radixlang.platforms.cpu import CpuPlatform
from radixlang.sampling_params import RowSampling

HEADS, KV_HEADS, DIM, HIDDEN = 4, 2, 16, 32
NAN_TOKEN = 1
"""its embedding is NaN"""
BOMB_TOKEN = 2
"""the model raises when it sees this"""
GREEDY = RowSampling()
NONE = np.zeros(0, np.int32)


@dataclass
class Layer:
    scale: float = 0.25
    window: int = 0
    softcap: float = 0.0


class TinyModel:
    """Follows `radixlang.models.Model`. `naive` computes the same for one whole sequence without any cache."""

    def __init__(self, vocab: int = 97, pooling: str = "last", encoder: bool = False) -> None:
        self.spec = ModelSpec(
            family="tiny", architecture="Tiny", vocab_size=vocab, hidden_size=HIDDEN, intermediate_size=8,
            num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, layers=(LayerSpec(), LayerSpec(window=6)),
            context_length=4096, pooling=pooling, normalize=False, encoder=encoder, eos_ids=(0,),
        )  # fmt: skip
        g = torch.Generator().manual_seed(0)
        self.embed = torch.randn(vocab, HIDDEN, generator=g)
        self.embed[NAN_TOKEN] = torch.nan
        self.time = torch.randn(64, HIDDEN, generator=g)
        self.q, self.k, self.v, self.o = (
            [torch.randn(n, m, generator=g) * 0.3 for _ in range(2)]
            for n, m in (
                (HIDDEN, HEADS * DIM),
                (HIDDEN, KV_HEADS * DIM),
                (HIDDEN, KV_HEADS * DIM),
                (HEADS * DIM, HIDDEN),
            )
        )
        self.head = torch.randn(HIDDEN, vocab, generator=g)
        self.weight_bytes = self.embed.nbytes
        self.layers = [Layer(), Layer(window=6)]
        self.logit_rows: list[int] = []

    def _enter(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.embed[ids] + self.time[positions % 64]

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if bool((input_ids == BOMB_TOKEN).any()):
            raise RuntimeError("the bomb token went off")
        x = self._enter(input_ids, positions)
        if self.spec.encoder:
            return x
        context = current()
        batch = context.batch
        for i, layer in enumerate(self.layers):
            k_cache, v_cache = context.kv[i]
            k_cache.flatten(0, 1)[batch.slots] = (x @ self.k[i]).unflatten(1, (KV_HEADS, DIM))
            v_cache.flatten(0, 1)[batch.slots] = (x @ self.v[i]).unflatten(1, (KV_HEADS, DIM))
            q = (x @ self.q[i]).unflatten(1, (HEADS, DIM))
            out = context.attention.forward(layer, q, k_cache, v_cache, batch, context.plan)
            x = F.layer_norm(x + out.flatten(1) @ self.o[i], (HIDDEN,))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.logit_rows.append(len(hidden))
        return hidden @ self.head

    def naive(self, ids: list[int]) -> torch.Tensor:
        """Hidden states of the whole sequence."""
        n = len(ids)
        x = self._enter(torch.tensor(ids), torch.arange(n))
        at = torch.arange(n)
        for i, layer in enumerate(self.layers):
            q = (x @ self.q[i]).unflatten(1, (HEADS, DIM)).transpose(0, 1)
            k, v = (
                (x @ w[i]).unflatten(1, (KV_HEADS, DIM)).repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1)
                for w in (self.k, self.v)
            )
            allowed = at[None] <= at[:, None]
            if layer.window:
                allowed = allowed & (at[None] > at[:, None] - layer.window)
            scores = (q @ k.transpose(1, 2) * layer.scale).masked_fill(~allowed, -torch.inf)
            out = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
            x = F.layer_norm(x + out @ self.o[i], (HIDDEN,))
        return x

    def naive_logits(self, ids: list[int]) -> torch.Tensor:
        return self.naive(ids) @ self.head

    def greedy(self, prompt: list[int], steps: int) -> list[int]:
        ids = list(prompt)
        for _ in range(steps):
            ids.append(int(self.naive_logits(ids)[-1].argmax()))
        return ids[len(prompt) :]


def make_executor(
    model: TinyModel, page_size: int = 4, pages: int = 200, rows: int = 9, attention: Any = None
) -> DeviceExecutor:
    platform = CpuPlatform()
    pool = KvPool(model.spec, pages, page_size, torch.float32, platform.device)
    for k, v in pool.layers:
        k[1:].fill_(torch.nan)
        v[1:].fill_(torch.nan)
    table = RequestTable(rows, 300 // page_size + 1, platform.device)
    backend = (attention or TorchAttention)(model.spec, page_size, platform.device)
    return DeviceExecutor(model, platform, pool, table, backend)


@dataclass
class Row:
    """One sequence as a host would keep it. `tokens` are those known; -1 stands for one only the device knows."""

    row: int
    tokens: list[int]
    sampling: RowSampling = GREEDY
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    fresh: bool = True
    prompt: int = 0
    out: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt = self.prompt or len(self.tokens)


class Host:
    """Writes plans for rows: grants, pages, set-ups."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.step = 0
        self.next_page = 1
        self.log: list[tuple[StepPlan, list[Row]]] = []

    def plan(self, grants: list[tuple[Row, int]], **extra: Any) -> StepPlan:
        new, setups, ids, samples = [], [], [], []
        starts = [row.computed for row, _ in grants]
        for row, count in grants:
            if row.fresh:
                prompt = np.array(row.tokens[: row.prompt], np.int32)
                setups.append(RowSetup(row.row, row.sampling, prompt, np.array(row.out, np.int32), len(row.out)))
                new += [(row.row, i, page) for i, page in enumerate(row.pages)]
                row.fresh = False
            ids += row.tokens[row.computed : row.computed + count]
            row.computed += count
            while len(row.pages) * self.page_size < row.computed:
                new.append((row.row, len(row.pages), self.next_page))
                row.pages.append(self.next_page)
                self.next_page += 1
            samples.append(row.computed == len(row.tokens))
            if samples[-1]:
                row.tokens.append(-1)
        self.step += 1
        values: dict[str, Any] = {
            "step": self.step,
            "rows": np.array([row.row for row, _ in grants], np.int32),
            "starts": np.array(starts, np.int32),
            "counts": np.array([count for _, count in grants], np.int32),
            "token_ids": np.array(ids, np.int32),
            "samples": np.array(samples),
            "pools": np.zeros(len(grants), bool),
            "new_pages": np.array(new, np.int32).reshape(-1, 3),
            "setups": tuple(setups),
        }
        return StepPlan(**(values | extra))


def wish(index: int, **values: Any) -> LogprobWish:
    defaults: dict[str, Any] = {"first_logit": -1, "targets": NONE, "output": False, "top": 0, "token_ids": ()}
    return LogprobWish(index=index, **(defaults | values))
