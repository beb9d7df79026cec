"""Masks and changes of logits by kernels, against their torch twins."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.kernels import reference, sampling  # noqa: E402
from radixlang.kernels.bitmask import apply_bitmask  # noqa: E402
from radixlang.kernels.edit_words import END, PROMPT, TIMES  # noqa: E402
from radixlang.kernels.edits import Edits  # noqa: E402

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
VOCABS = [1, 33, 2100]
LIMITS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.2, "top_p": 0.8},
    {"temperature": 0.9, "min_p": 0.1},
    {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
]


def column(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def packed(allowed: torch.Tensor) -> torch.Tensor:
    """Bits of [G, 32 * words] → int32 [G, words]."""
    bits = (allowed.view(len(allowed), -1, 32).long() << torch.arange(32)).sum(-1)
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).int().to(DEVICE)


def draw(
    logits: torch.Tensor, limits: dict[str, float], edits: Edits | None = None, drawn: int = 3
) -> list[list[int]]:
    """[tokens, bad] of all rows, row b drawn with seed b."""
    size = len(logits)
    home = torch.full((2, size), -1, dtype=torch.int32, device=DEVICE)
    options = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0} | limits
    sampling.sample(
        logits,
        *(
            column([options[name]] * size, torch.int32 if name == "top_k" else torch.float32)
            for name in ("temperature", "top_k", "top_p", "min_p")
        ),
        torch.arange(size, device=DEVICE),
        torch.full((size,), drawn, dtype=torch.int32, device=DEVICE),
        rows=torch.arange(size, dtype=torch.int32, device=DEVICE),
        next_token=torch.zeros(size, dtype=torch.int64, device=DEVICE),
        home=home,
        edits=edits,
    )
    return home.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("short", [0, 1])
def test_bitmask(vocab: int, dtype: torch.dtype, short: int) -> None:
    """Rows that are listed lose exactly what their bits forbid, and what is past the end of a short mask; a mask
    without a row changes nothing."""
    generator = torch.Generator().manual_seed(vocab)
    words = max(1, -(-vocab // 32) - short)
    allowed = torch.rand((4, words * 32), generator=generator) < 0.5
    allowed[:, 31] = True  # the sign bit
    logits = torch.randn((4, vocab), generator=generator).to(DEVICE, dtype)
    index = torch.tensor([3, -1, 0, 1], dtype=torch.int32, device=DEVICE)
    expected = logits.clone()
    for g, row in enumerate(index.tolist()):
        for token in range(vocab):
            if row < 0:
                continue
            if token >= words * 32 or not allowed[g, token]:
                expected[row, token] = -torch.inf
    twin = logits.clone()
    apply_bitmask(logits, index, packed(allowed))
    reference.apply_bitmask(twin, index, packed(allowed))
    assert torch.equal(logits, expected)
    assert torch.equal(twin, expected)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_masked_rows_draw_what_is_allowed_or_say_that_nothing_is(limits: dict[str, float]) -> None:
    vocab, rows = 2100, 8
    generator = torch.Generator().manual_seed(1)
    allowed = torch.rand((rows, 66 * 32), generator=generator) < 0.01
    allowed[3] = False
    allowed[4] = False
    allowed[4, 2099] = True
    logits = torch.randn((rows, vocab), generator=generator).to(DEVICE, torch.float16) * 4
    best = logits.float().argmax(-1).tolist()
    allowed[torch.arange(rows), torch.tensor(best)] = False  # what would win may not
    apply_bitmask(logits, torch.arange(rows, dtype=torch.int32, device=DEVICE), packed(allowed))
    tokens, bad = draw(logits, limits)
    assert bad == [0, 0, 0, 1, 0, 0, 0, 0]
    assert all(allowed[row, token] for row, token in enumerate(tokens) if row != 3)
    assert tokens[4] == 2099


class Buffers:
    """Three rows with all kinds of changes between two without any."""

    FREQUENCY = (0.0, 0.5, -1.0, 0.25, 0.0)
    PRESENCE = (0.0, 1.5, 0.0, -0.75, 0.0)
    REPETITION = (1.0, 1.3, 0.7, 1.0, 1.0)
    LEAST = (0, 3, 4, 0, 0)

    def __init__(self, vocab: int) -> None:
        generator = torch.Generator().manual_seed(0)
        times = torch.randint(0, 4, (5, vocab), generator=generator)
        times[2, -1] = TIMES
        marks = torch.rand((2, 5, vocab), generator=generator) < 0.2
        self.words = (times + marks[0] * PROMPT + marks[1] * END).to(DEVICE, torch.int16)
        self.bias = (torch.randn((5, vocab), generator=generator) * 3).to(DEVICE)
        self.rows = [torch.empty(vocab, device=DEVICE) for _ in range(5)]
        self.row_words = [row.clone() for row in self.words]
        self.row_bias = [row.clone() for row in self.bias]
        self.edited, self.biased = (1, 2, 3), (2, 3)
        self.edits = Edits(
            self.addresses(self.rows, self.edited),
            self.addresses(self.row_words, self.edited),
            self.addresses(self.row_bias, self.biased),
            *(column(list(values)) for values in (self.FREQUENCY, self.PRESENCE, self.REPETITION)),
            column(list(self.LEAST), torch.int32),
        )

    @staticmethod
    def addresses(arrays: list[torch.Tensor], rows: tuple[int, ...]) -> torch.Tensor:
        return column([array.data_ptr() if i in rows else 0 for i, array in enumerate(arrays)], torch.int64)

    def expected(self, logits: torch.Tensor, drawn: int) -> torch.Tensor:
        out = logits.float().clone()
        for b in self.edited:
            out[b] = reference.edit(
                logits[b],
                self.words[b],
                self.bias[b] if b in self.biased else None,
                frequency=self.FREQUENCY[b],
                presence=self.PRESENCE[b],
                repetition=self.REPETITION[b],
                early=drawn < self.LEAST[b],
            )
        return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", VOCABS)
def test_changed_logits_are_kept_and_drawn_from(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn((5, vocab), generator=generator) * 3).to(DEVICE, dtype)
    logits[3, vocab // 2] = -torch.inf  # a mask's doing: nothing brings it back
    untouched = logits.clone()
    for number, limits in enumerate((LIMITS[0], LIMITS[1], LIMITS[5])):
        buffers = Buffers(vocab)
        drawn = 2 + number
        expected = buffers.expected(logits, drawn)
        tokens, bad = draw(logits, limits, buffers.edits, drawn)
        for b in buffers.edited:
            torch.testing.assert_close(buffers.rows[b], expected[b], atol=1e-4, rtol=1e-5)
        assert torch.equal(logits, untouched), "the logits themselves stay as the model made them"
        # From the very same numbers: a draw at an edge could fall either way by their rounding.
        whole = torch.stack([buffers.rows[b] if b in buffers.edited else logits[b].float() for b in range(5)])
        assert [tokens, bad] == draw(whole, limits, drawn=drawn)
        for b in range(5):
            counted = buffers.words[b].clone()
            if b in buffers.edited:
                token = tokens[b]
                counted[token] += int(counted[token]) & TIMES < TIMES
            assert torch.equal(buffers.row_words[b], counted)


def test_the_largest_count_stays() -> None:
    buffers = Buffers(40)
    logits = torch.full((5, 40), -50.0, device=DEVICE)
    logits[2, 39] = 3.0e4  # at its largest count, and it still wins
    buffers.row_words[2][39] = PROMPT + END + TIMES
    tokens, _bad = draw(logits, {"temperature": 0.0}, buffers.edits._replace(least=column([0] * 5, torch.int32)))
    assert tokens[2] == 39
    assert int(buffers.row_words[2][39]) == PROMPT + END + TIMES
