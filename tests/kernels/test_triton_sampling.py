"""The sampling kernels against their torch twins, and the draws against the distribution they must follow."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from radixlang.kernels import reference, sampling  # noqa: E402
from radixlang.sampling.noise import uniforms  # noqa: E402


def draw(
    logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = -1,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seeds: list[int] | None = None,
    drawn_before: list[int] | None = None,
    module: object = sampling,
) -> torch.Tensor:
    rows = logits.shape[0]

    def column(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype, device=DEVICE)

    return module.sample(  # type: ignore[attr-defined]
        logits.to(DEVICE),
        column(temperature),
        column(top_k, torch.int32),
        column(top_p),
        column(min_p),
        torch.tensor(seeds or list(range(rows)), dtype=torch.int64, device=DEVICE),
        torch.tensor(drawn_before or [3] * rows, dtype=torch.int64, device=DEVICE),
    )


def logits_of(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 100000},
        {"top_p": 0.9},
        {"top_p": 0.0},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    ],
)
@pytest.mark.parametrize("vocab", [50, 2503])
def test_draws_equal_the_twin(vocab: int, options: dict[str, float]) -> None:
    logits = logits_of(4, vocab)
    assert draw(logits, **options).tolist() == draw(logits, **options, module=reference).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_full_of_ties(dtype: torch.dtype) -> None:
    logits = logits_of(3, 2300).to(dtype)
    for options in ({"top_k": 7}, {"top_p": 0.7}, {"top_k": 30, "top_p": 0.5}):
        ours = draw(logits, **options)  # type: ignore[arg-type]
        assert ours.tolist() == draw(logits, **options, module=reference).tolist()  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([-float("inf"), -1e30, -3.4e38, -2.0, 0.0, 0.5, 0.5000001, 7.0]), min_size=1, max_size=9
    ),
    top_k=st.integers(-1, 10),
    top_p=st.sampled_from([1.0, 0.999, 0.617, 0.31, 0.05]),
    min_p=st.sampled_from([0.0, 0.15]),
    seed=st.integers(0, 2**63 - 1),
)
def test_awkward_rows_equal_the_twin(
    values: list[float], top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    """Ties, outliers, masked tokens and neighbouring floats."""
    logits = torch.tensor([values])
    token = int(draw(logits, top_k=top_k, top_p=top_p, min_p=min_p, seeds=[seed]))
    if max(values) == -float("inf"):
        assert token == 0
        return
    kept = reference.kept_probabilities(logits[0], 1.0, top_k, top_p, min_p)
    assert kept[token] > 0
    expected = draw(logits, top_k=top_k, top_p=top_p, min_p=min_p, seeds=[seed], module=reference)
    assert token == int(expected)


def test_thresholds_keep_exactly_the_right_tokens() -> None:
    """Over many seeds every token that should be kept turns up, and no other."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 0.0]]).expand(24, -1).contiguous()
    assert set(draw(logits, top_k=3).tolist()) == {1, 2, 3}
    assert set(draw(logits, top_k=1).tolist()) == {1}, "of equal logits the lower token id ranks first"
    assert set(draw(logits, top_p=0.3).tolist()) == {1}
    assert set(draw(logits, top_p=0.75).tolist()) == {1, 3}
    assert set(draw(logits, top_p=0.85).tolist()) == {1, 2, 3}
    assert set(draw(logits, min_p=0.2).tolist()) == {1, 2, 3}


def test_frequencies_follow_the_distribution() -> None:
    rows = 120
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -float("inf")])
    tokens = draw(logits.expand(rows, -1).contiguous(), temperature=0.8)
    seen = torch.bincount(tokens.cpu(), minlength=5) / rows
    expected = (logits / 0.8).softmax(-1)
    assert seen[4] == 0
    assert float((seen - expected).abs().max()) < 4 * 0.5 / rows**0.5


def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = logits_of(1, 400) / 10
    alone = draw(logits, seeds=[77], drawn_before=[5])
    among = draw(logits.expand(4, -1).contiguous(), seeds=[1, 2, 77, 3], drawn_before=[5, 6, 5, 5])
    assert int(alone) == int(among[2])
    by_count = draw(logits.expand(40, -1).contiguous(), seeds=[77] * 40, drawn_before=list(range(40)))
    assert len(set(by_count.tolist())) > 20
    high_word = draw(logits.expand(40, -1).contiguous(), seeds=[77 + (i << 32) for i in range(40)])
    assert len(set(high_word.tolist())) > 20


def test_parameters_of_rows_and_where_tokens_go() -> None:
    """Columns of a table of 9 rows, three of which draw: greedy, top-k 1 by limit, and one with a NaN."""
    logits = logits_of(3, 5000)
    logits[2, 4000] = float("nan")
    rows = torch.tensor([4, 8, 2], dtype=torch.int32, device=DEVICE)
    temperature = torch.tensor([0.0, 0, 1, 0, 0, 0, 0, 0, 1], device=DEVICE)
    top_k = torch.tensor([0, 0, 1, 0, 0, 0, 0, 0, 1], dtype=torch.int32, device=DEVICE)
    one, zero = torch.ones(9, device=DEVICE), torch.zeros(9, device=DEVICE)
    long = torch.zeros(9, dtype=torch.int64, device=DEVICE)
    next_token = torch.full((9,), -1, dtype=torch.int64, device=DEVICE)
    home = torch.full((2, 4), -1, dtype=torch.int32, device=DEVICE)
    tokens = sampling.sample(
        logits.to(DEVICE), temperature, top_k, one, zero, long, long, rows=rows, next_token=next_token, home=home
    )
    best = reference.argmax(logits).tolist()
    assert tokens.tolist() == best
    assert next_token.tolist() == [-1, -1, best[2], -1, best[0], -1, -1, -1, best[1]]
    assert home.tolist() == [[*best, -1], [0, 0, 1, -1]]


def test_noise_is_that_of_the_host_sampler() -> None:
    seeds = [0, 1, 2**40 + 7, 2**63 - 1]
    for seed in seeds:
        for drawn in (0, 1, 1000):
            host = uniforms(np.array([seed], np.uint64), np.array([drawn], np.int64))
            assert reference.uniform(seed, drawn) == float(host[0])


def test_rows_that_wait_are_passed_over() -> None:
    """Two draws, each of the rows that the other leaves out, equal one draw of all."""
    logits = logits_of(4, 3000).to(DEVICE)
    columns = [torch.full((4,), value, device=DEVICE) for value in (0.9, 0.8, 0.0)]
    temperature, top_p, min_p = columns
    top_k = torch.full((4,), -1, dtype=torch.int32, device=DEVICE)
    seeds = torch.arange(4, device=DEVICE)
    rows = torch.tensor([3, 0, 2, 1], dtype=torch.int32, device=DEVICE)
    outcomes = []
    for passes in ([[5, 6, 7, 8]], [[5, -1, -1, 8], [-1, 6, 7, -1]]):
        next_token = torch.full((4,), -9, dtype=torch.int64, device=DEVICE)
        home = torch.full((2, 4), -9, dtype=torch.int32, device=DEVICE)
        for i, drawn in enumerate(passes):
            before = torch.tensor(drawn, dtype=torch.int32, device=DEVICE)
            sampling.sample(
                logits,
                temperature,
                top_k,
                top_p,
                min_p,
                seeds,
                before,
                rows=rows,
                next_token=next_token,
                home=home,
            )
            if i == 0:
                assert ((home[0] == -9) == (before < 0)).all()
                assert ((next_token[rows.long()] == -9) == (before < 0)).all()
        outcomes.append((next_token.tolist(), home.tolist()))
    assert outcomes[0] == outcomes[1]


def test_rows_without_a_candidate_and_nan() -> None:
    logits = torch.full((3, 70), -float("inf"))
    logits[1, 66] = -5.0
    logits[2, 3], logits[2, 9] = float("nan"), 1.0
    assert draw(logits).tolist() == [0, 66, 9]
    assert sampling.argmax(logits.to(DEVICE)).tolist() == [0, 66, 9]


@pytest.mark.parametrize("vocab", [1, 33, 5000])
def test_argmax(vocab: int) -> None:
    logits = logits_of(4, vocab).round()
    ours = sampling.argmax(logits.to(DEVICE))
    assert ours.tolist() == reference.argmax(logits).tolist()
    assert ours.tolist() == [row.tolist().index(max(row.tolist())) for row in logits]
