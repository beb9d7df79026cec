"""The sampler against an obvious float64 reference: distributions, determinism, penalties, masks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.plan import RowSetup
from radixlang.platforms.cpu import CpuPlatform
from radixlang.sampling import sampler
from radixlang.sampling.batch import SamplingBatch
from radixlang.sampling.noise import uniforms
from radixlang.sampling.sampler import BAD, sample
from radixlang.sampling_params import GREEDY_TEMPERATURE, MAX_REPETITION, MAX_SCORE, RowSampling

NONE = np.zeros(0, np.int32)
PLATFORM = CpuPlatform()


def make(
    rows: list[RowSampling], vocab: int, prompt: Any = NONE, output: Any = NONE, generated: Any = 0
) -> SamplingBatch:
    """State with rows 1, 2, …; `generated` is one number or one per row."""
    state = SamplingBatch(len(rows) + 1, vocab, PLATFORM)
    counts = np.broadcast_to(generated, len(rows))
    for i, one in enumerate(rows):
        ids = np.asarray(prompt, np.int32), np.asarray(output, np.int32)
        state.setup(RowSetup(i + 1, one, *ids, generated=int(counts[i])))
    return state


def draw(
    state: SamplingBatch, logits: torch.Tensor, rows: Any = None, bits: Any = None, masked: Any = NONE
) -> Any:
    rows = np.arange(1, len(logits) + 1) if rows is None else np.asarray(rows)
    return sample(state, logits.clone(), rows.astype(np.int32), bits, np.asarray(masked, np.int32))


def reference(logits: np.ndarray, s: RowSampling) -> np.ndarray:
    """Probabilities of one row in float64."""
    if s.greedy or s.min_p >= 1:
        return np.eye(len(logits))[logits.argmax()]
    x = logits.astype(np.float64) / s.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept, before = np.zeros(len(p), bool), 0.0
    for rank, token in enumerate(order):
        ok = (s.top_k < 1 or rank < s.top_k) and before < s.top_p and p[token] >= s.min_p * p[order[0]]
        kept[token] = ok
        before += p[token]
    p[~kept] = 0
    return p / p.sum()


def check_distribution(tokens: np.ndarray, p: np.ndarray) -> None:
    """Only possible tokens, and a chi-square statistic five deviations from its mean at most."""
    counts = np.bincount(tokens, minlength=len(p))
    assert not counts[p == 0].any()
    expected = p * len(tokens)
    big = expected >= 5
    chi = ((counts - expected)[big] ** 2 / expected[big]).sum()
    freedom = max(big.sum() - 1, 1)
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5, (chi, freedom)


COMBINATIONS = list(itertools.product([1.0, 0.6], [-1, 5], [1.0, 0.9], [0.0, 0.1], [None, 3]))


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p", "seed"), COMBINATIONS)
def test_distribution_of_every_combination(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int | None
) -> None:
    draws, vocab = 3000, 40
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(1)) * 1.5
    rows = [
        RowSampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=1000 + i if seed is None else seed
        )
        for i in range(draws)
    ]
    # One seed for all: then the position alone makes the difference.
    state = make(rows, vocab, generated=0 if seed is None else np.arange(draws))
    tokens = draw(state, logits.repeat(draws, 1)).tokens.numpy()
    check_distribution(tokens, reference(logits.numpy(), rows[0]))


def test_min_p_one_equals_greedy_even_with_ties() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    for seed in range(20):
        assert draw(make([RowSampling(temperature=1.0, min_p=1.0, seed=seed)], 4), logits).tokens.tolist() == [1]


def test_greedy_step_takes_the_argmax() -> None:
    logits = torch.randn(5, 300)
    drawn = draw(make([RowSampling()] * 5, 300), logits)
    assert drawn.tokens.tolist() == logits.argmax(-1).tolist()
    assert torch.equal(drawn.logits, logits)


def _mixed_rows() -> list[RowSampling]:
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 7},
        {"temperature": 1.0, "min_p": 0.05, "top_p": 0.99},
        {"temperature": 1.5, "top_p": 0.999},
    ]
    return [RowSampling(seed=i * 7 + 1, **kinds[i % len(kinds)]) for i in range(24)]


def test_a_row_draws_the_same_token_alone_and_in_any_company() -> None:
    vocab = 6000
    logits = torch.randn(24, vocab, generator=torch.Generator().manual_seed(2)) * 2
    logits[:, 10:20] = logits[:, 20:30]  # ties
    logits = (logits * 4).round() / 4  # many ties
    rows = _mixed_rows()
    together = draw(make(rows, vocab, generated=5), logits).tokens.tolist()
    alone = [draw(make([row], vocab, generated=5), logits[i : i + 1]).tokens.item() for i, row in enumerate(rows)]
    assert together == alone
    order = np.random.default_rng(0).permutation(24)
    shuffled = draw(make(rows, vocab, generated=5), logits[order], order + 1).tokens.tolist()
    assert shuffled == [together[i] for i in order]


def test_number_of_candidates_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = 6000
    logits = (torch.randn(24, vocab, generator=torch.Generator().manual_seed(3)) * 6).round() / 4
    rows = _mixed_rows()
    usual = draw(make(rows, vocab), logits).tokens.tolist()
    for first, more in ((1, 2), (2, 50), (6000, 6000)):
        monkeypatch.setattr(sampler, "FIRST_CANDIDATES", first)
        monkeypatch.setattr(sampler, "MORE_CANDIDATES", more)
        assert draw(make(rows, vocab), logits).tokens.tolist() == usual


def test_position_goes_on_after_a_retraction() -> None:
    """Three tokens, then two more in one go, equal three tokens, a new set-up and two more."""
    vocab = 100
    logits = torch.randn(1, vocab)
    row = RowSampling(temperature=1.0, seed=11, frequency_penalty=1.5, repetition_penalty=1.2)
    state = make([row], vocab, prompt=[3, 4])
    straight = [draw(state, logits).tokens.item() for _ in range(5)]
    again = make([row], vocab, prompt=[3, 4], output=straight[:3], generated=3)
    assert [draw(again, logits).tokens.item() for _ in range(2)] == straight[3:]
    assert len(set(straight)) > 1


def test_noise_is_uniform_and_independent_of_neighbours() -> None:
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 200)
    positions = np.tile(np.arange(200), 200)
    u = uniforms(seeds, positions)
    assert u.dtype == np.float32
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, 50, (0, 1))[0]
    assert abs(((counts - 800) ** 2 / 800).sum() - 49) < 5 * np.sqrt(98)
    grid = u.reshape(200, 200)
    for other in (np.roll(grid, 1, 0), np.roll(grid, 1, 1)):
        assert abs(np.corrcoef(grid.ravel(), other.ravel())[0, 1]) < 0.03
    assert uniforms(np.array([2**63 - 1], np.uint64), np.array([10**6])).shape == (1,)


# ---- changes to the logits ----


def adjusted(logits: np.ndarray, s: RowSampling, prompt: list[int], output: list[int]) -> np.ndarray:
    x = logits.astype(np.float64).copy()
    for token in range(len(x)):
        count = output.count(token)
        x[token] -= s.frequency_penalty * count + s.presence_penalty * (count > 0)
        if count or token in prompt:
            x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
    for token, value in s.logit_bias.items():
        x[token] += value
    if len(output) < s.min_new_tokens:
        x[[token for token in s.end_ids if token < len(x)]] = -np.inf
    return x


def test_penalties_bias_and_minimum_over_several_steps() -> None:
    vocab = 30
    rows = [
        RowSampling(frequency_penalty=0.7, presence_penalty=-0.4),
        RowSampling(),
        RowSampling(repetition_penalty=1.7, logit_bias={3: 2.5, 29: -50.0}),
        RowSampling(temperature=0.9, seed=4, frequency_penalty=2.0, repetition_penalty=0.8),
        RowSampling(min_new_tokens=3, end_ids=(1, 2), logit_bias={1: 100.0}),
        RowSampling(presence_penalty=2.0, min_new_tokens=5, end_ids=(0, 99)),  # 99 is past the vocabulary
        RowSampling(temperature=0.5, top_k=3, seed=9, presence_penalty=1.0),
    ]
    prompt = [5, 6, 6, 7]
    state = make(rows, vocab, prompt=prompt)
    outputs: list[list[int]] = [[] for _ in rows]
    generator = torch.Generator().manual_seed(5)
    for step in range(6):
        order = np.arange(len(rows)) if step % 2 == 0 else np.array([6, 2, 4, 0])
        logits = torch.randn(len(order), vocab, generator=generator)
        drawn = draw(state, logits, order + 1)
        for s, i in enumerate(order):
            expected = adjusted(logits[s].numpy(), rows[i], prompt, outputs[i])
            temperature = rows[i].temperature or 1.0
            np.testing.assert_allclose(drawn.logits[s].numpy(), expected / temperature, rtol=1e-5, atol=1e-5)
            token = int(drawn.tokens[s])
            if rows[i].greedy:
                assert token == expected.argmax()
            outputs[i].append(token)
    assert not {1, 2} & set(outputs[4][:3])
    assert outputs[4][3] == 1


def test_first_token_sees_the_prompt_through_the_repetition_penalty_only() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0, 0.5]])
    plain = draw(make([RowSampling(frequency_penalty=2.0, presence_penalty=2.0)], 4, prompt=[1, 1, 2]), logits)
    assert torch.equal(plain.logits, logits)
    repeated = draw(make([RowSampling(repetition_penalty=5.0)], 4, prompt=[1, 1, 2]), logits)
    np.testing.assert_allclose(repeated.logits[0], [1.0, 0.4, -5.0, 0.5], rtol=1e-6)


def test_a_row_that_changes_hands_forgets_its_penalties() -> None:
    """Nine old rows saw 3 and generated 4; among the new ones a longer row keeps all lists in view."""
    old = RowSampling(presence_penalty=2.0)
    state = make([old] * 9, 10, prompt=[3], output=[4])
    new = RowSampling(frequency_penalty=1.0, repetition_penalty=2.0)
    for row in range(1, 9):
        sampling = RowSampling() if row == 2 else new
        state.setup(RowSetup(row, sampling, NONE, np.array([8], np.int32), 1))
    long = np.arange(8, dtype=np.int32)
    state.setup(RowSetup(9, new, long, NONE))
    logits = torch.ones(9, 10)
    logits[:, 4] = 50.0  # everybody draws 4
    expected = logits.clone()
    expected[:8, 8] = 0.0
    expected[1, 8] = 1.0
    expected[8, :8] /= 2
    out = draw(state, logits)
    assert torch.equal(out.logits, expected)
    assert out.tokens.tolist() == [4] * 9
    expected[:, 4] = 49.0 / 2
    expected[1, 4] = 50.0
    assert torch.equal(draw(state, logits).logits, expected)


def test_min_p_cuts_exactly_there() -> None:
    probabilities = torch.tensor([[0.5, 0.26, 0.14, 0.1]])
    for min_p, kept in ((0.1, 4), (0.25, 3), (0.3, 2), (0.6, 1)):
        rows = [RowSampling(temperature=1.0, min_p=min_p, seed=i) for i in range(300)]
        tokens = draw(make(rows, 4), probabilities.log().repeat(300, 1)).tokens
        assert tokens.unique().tolist() == list(range(kept))


def test_penalties_of_long_texts_and_many_rows() -> None:
    """Longer than the first room for tokens, more rows than the first slots, token 0 among them or not."""
    vocab, generator = 400, np.random.default_rng(8)
    state = SamplingBatch(13, vocab, PLATFORM)
    rows, prompts, outputs = [], [], []
    for i in range(12):
        rows.append(RowSampling(frequency_penalty=0.1 * i, presence_penalty=0.3, repetition_penalty=1.0 + 0.1 * i))
        prompts.append(generator.integers(0, vocab, (0, 3, 150, 500)[i % 4]).tolist())
        outputs.append(generator.integers(0, vocab, (0, 90)[i % 2]).tolist())
        ids = np.array(prompts[i], np.int32), np.array(outputs[i], np.int32)
        state.setup(RowSetup(i + 1, rows[i], *ids, generated=len(outputs[i])))
    for _ in range(70):
        logits = torch.from_numpy(generator.normal(size=(12, vocab)).astype(np.float32))
        drawn = draw(state, logits)
        for i in range(12):
            expected = adjusted(logits[i].numpy(), rows[i], prompts[i], outputs[i])
            np.testing.assert_allclose(drawn.logits[i], expected, atol=1e-4)
            outputs[i].append(int(drawn.tokens[i]))


@pytest.mark.parametrize("vocab", [64, 70, 33])
def test_masks_allow_only_what_their_bits_say(vocab: int) -> None:
    words = -(-vocab // 32)
    generator = np.random.default_rng(vocab)
    allowed = generator.random((2, words * 32)) < 0.3
    allowed[:, 31] = True  # the sign bit of a word
    bits = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
    logits = torch.randn(3, vocab)
    rows = [RowSampling(), RowSampling(temperature=5.0, seed=1), RowSampling(temperature=2.0, top_p=0.95, seed=2)]
    out = draw(make(rows, vocab), logits, bits=bits, masked=[2, 0])
    assert torch.isfinite(out.logits[1]).all()
    for g, s in enumerate([2, 0]):
        assert (torch.isfinite(out.logits[s]).numpy() == allowed[g, :vocab]).all()
        assert allowed[g, out.tokens[s]]
    short = torch.full((1, 1), -1, dtype=torch.int32)
    cut = draw(make([RowSampling()], vocab), logits[:1], bits=short, masked=[0])
    assert torch.isfinite(cut.logits[0]).sum() == 32


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_rows_are_named_and_leave_the_others_alone(temperature: float) -> None:
    rows = [RowSampling(temperature=temperature, seed=i) for i in range(5)]
    logits = torch.randn(5, 50)
    healthy = draw(make(rows, 50), logits).tokens.tolist()
    logits[1, 7] = torch.nan
    logits[2] = -torch.inf
    logits[4, 3] = torch.inf
    out = draw(make(rows, 50), logits)
    assert out.flags.tolist() == [0, BAD, BAD, 0, BAD]
    assert [out.tokens[i].item() for i in (0, 3)] == [healthy[0], healthy[3]]
    assert 0 <= int(out.tokens.min()) <= int(out.tokens.max()) < 50


def test_masked_out_tokens_are_never_drawn_from_a_nearly_empty_row() -> None:
    logits = torch.full((64, 1000), -torch.inf)
    logits[:, 999] = 0.0
    rows = [RowSampling(temperature=1.0, seed=i, top_p=1.0 if i % 2 else 0.5) for i in range(64)]
    assert draw(make(rows, 1000), logits).tokens.tolist() == [999] * 64


@pytest.mark.parametrize(
    "limits",
    [
        {"top_p": 1e-300},
        {"min_p": 1e-300},
        {"temperature": MAX_SCORE},
        {"temperature": 1.1 * GREEDY_TEMPERATURE, "logit_bias": {1: MAX_SCORE, 5: MAX_SCORE}},
        {"logit_bias": dict.fromkeys(range(40), -MAX_SCORE)},
        {"repetition_penalty": MAX_REPETITION, "temperature": 1.1 * GREEDY_TEMPERATURE},
        {"repetition_penalty": 1 / MAX_REPETITION, "temperature": 1.1 * GREEDY_TEMPERATURE, "top_p": 0.5},
    ],
)
def test_extreme_parameters_draw_what_is_allowed_and_nothing_else(limits: dict[str, Any]) -> None:
    one = RowSampling(**{"temperature": 1.0, "seed": 3, **limits})
    state = make([one, RowSampling(temperature=1.0, seed=5)], 40, prompt=[1, 2, 30], output=[3, 31])
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 8, (2, 40)).astype(np.float32))
    bits = torch.tensor([[0b1110, 0]], dtype=torch.int32)
    for _ in range(20):
        drawn = draw(state, logits, bits=bits, masked=[0])
        assert int(drawn.tokens[0]) in (1, 2, 3)
        assert drawn.flags.tolist() == [0, 0]
