"""The sampler whose draws are made by kernels against the one in torch, over the lives of requests."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.kernels.edit_words import END, PROMPT, TIMES  # noqa: E402
from radixlang.plan import RowSetup  # noqa: E402
from radixlang.platforms.accelerator import AcceleratorPlatform  # noqa: E402
from radixlang.platforms.cpu import CpuPlatform  # noqa: E402
from radixlang.sampling.batch import SamplingBatch  # noqa: E402
from radixlang.sampling.sampler import sample  # noqa: E402
from radixlang.sampling_params import RowSampling  # noqa: E402

NONE = np.zeros(0, np.int32)
ROWS = 6


def states(vocab: int) -> tuple[SamplingBatch, SamplingBatch]:
    """By kernels, and in torch."""
    platform = AcceleratorPlatform("cuda") if DEVICE == "cuda" else CpuPlatform()
    return (
        SamplingBatch(ROWS, vocab, platform, by_kernels=True),
        SamplingBatch(ROWS, vocab, CpuPlatform(), by_kernels=False),
    )


def ids(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def step(
    both: tuple[SamplingBatch, SamplingBatch],
    logits: torch.Tensor,
    rows: np.ndarray,
    bits: Any,
    masked: np.ndarray,
) -> np.ndarray:
    """Draw with both samplers, which must agree in tokens, bad rows and what was drawn from. → the tokens"""
    next_token = torch.zeros(ROWS, dtype=torch.int64, device=DEVICE)
    device_bits = None if bits is None else bits.to(DEVICE)
    ours = sample(both[0], logits.to(DEVICE, copy=True), rows, device_bits, masked, next_token)
    theirs = sample(both[1], logits.clone(), rows, bits, masked)
    assert ours.flags.tolist() == theirs.flags.tolist()
    good = [s for s in range(len(rows)) if not theirs.flags[s]]
    torch.testing.assert_close(ours.logits[good].cpu(), theirs.logits[good], atol=1e-4, rtol=1e-4)
    assert ours.packed is not None
    assert ours.packed[0, good].tolist() == ours.tokens[good].tolist() == next_token[rows.tolist()][good].tolist()
    assert ours.tokens[good].tolist() == theirs.tokens[good].tolist()
    return ours.tokens.cpu().numpy()


def a_sampling(rng: np.random.Generator, vocab: int) -> RowSampling:
    """Draws that do not lay out candidates by rank, for those the two samplers order differently."""
    kinds: list[dict[str, Any]] = [
        {},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -0.7, "repetition_penalty": 1.4},
        {"repetition_penalty": 0.8},
        {"logit_bias": {int(t): float(rng.normal() * 3) for t in rng.integers(0, vocab + 5, 4)}},
        {"min_new_tokens": 4, "end_ids": (1, vocab - 1, vocab + 3)},
        {"min_new_tokens": 2, "end_ids": (0,), "logit_bias": {0: 30.0}, "frequency_penalty": 1.0},
        {"min_new_tokens": 9},
    ]
    temperature = float(rng.choice([0.0, 0.7, 1.0]))
    return RowSampling(temperature=temperature, seed=int(rng.integers(1 << 62)), **kinds[rng.integers(len(kinds))])


@pytest.mark.parametrize("vocab", [37, 600])
def test_lives_of_requests(vocab: int) -> None:
    """Requests come, draw, are retracted, come back on another row, end; the counts are always the history's."""
    rng = np.random.default_rng(vocab)
    both = states(vocab)
    held: dict[int, tuple[RowSampling, np.ndarray, list[int]]] = {}
    waiting: list[tuple[RowSampling, np.ndarray, list[int]]] = []
    came_back = 0
    for turn in range(40):
        for row in range(1, ROWS):
            chance = rng.random()
            if row in held and chance < 0.1:
                waiting.append(held.pop(row))
            elif row in held and chance < 0.2:
                del held[row]
            elif row not in held and chance < 0.6:
                back = waiting.pop() if waiting else None
                came_back += back is not None
                request = back or (a_sampling(rng, vocab), rng.integers(0, vocab, rng.integers(1, 20)), [])
                sampling, prompt, output = held[row] = request
                seen = prompt if sampling.repetition_penalty != 1.0 else NONE
                for state in both:
                    state.setup(RowSetup(row, sampling, ids(seen), ids(output), len(output)))
        rows = rng.permutation(sorted(held))[: rng.integers(1, ROWS)].astype(np.int32)
        if not len(rows):
            continue
        logits = torch.from_numpy(rng.normal(size=(len(rows), vocab)).astype(np.float32) * 2)
        masked = np.flatnonzero(rng.random(len(rows)) < 0.3).astype(np.int32)
        bits = None
        if len(masked):
            words = rng.integers(-(1 << 31), 1 << 31, (len(masked), -(-vocab // 32)))
            bits = torch.from_numpy(words.astype(np.int32))
            if turn % 4 == 0:
                bits[0] = 0
        tokens = step(both, logits, rows, bits, masked)
        for s, row in enumerate(rows.tolist()):
            if bits is not None and turn % 4 == 0 and s == masked[0]:
                del held[row]  # nothing was allowed: its request fails
                continue
            held[row][2].append(int(tokens[s]))
        for row, (sampling, prompt, output) in held.items():
            buffer = both[0].edits._of.get(row)
            ends = [t for t in sampling.end_ids if t < vocab] if sampling.min_new_tokens else []
            assert (buffer is not None) == bool(sampling.penalised or sampling.logit_bias or ends)
            if buffer is not None:
                got = buffer.words.cpu().numpy()
                assert (got & TIMES).tolist() == np.bincount(ids(output), minlength=vocab).tolist()
                marked = set(prompt.tolist()) if sampling.repetition_penalty != 1.0 else set()
                assert set(np.flatnonzero(got & PROMPT).tolist()) == marked
                assert set(np.flatnonzero(got & END).tolist()) == set(ends)
    assert came_back > 3


def test_a_step_without_log_probabilities_leaves_the_logits_of_changed_rows() -> None:
    both = states(50)
    both[0].setup(RowSetup(1, RowSampling(presence_penalty=1.0), NONE, ids([3]), 1))
    logits = torch.randn(1, 50).to(DEVICE)
    before = logits.clone()
    drawn = sample(both[0], logits, ids([1]), None, NONE, scaled=False)
    assert torch.equal(drawn.logits, before)


def test_buffers_are_used_again() -> None:
    state, _ = states(50)
    addresses = set()
    for turn in range(6):
        for row in (1, 2):
            sampling = RowSampling(presence_penalty=0.5, logit_bias={3: 1.0} if turn % 2 else {})
            state.setup(RowSetup(row, sampling, NONE, NONE))
            values, words, bias = state.edits.addresses(row)
            assert values
            assert words
            assert bool(bias) == bool(turn % 2)
            addresses.add(values)
    assert len(addresses) <= 3
    state.setup(RowSetup(1, RowSampling(), NONE, NONE))
    assert state.edits.addresses(1) == (0, 0, 0)
