"""The kernels of device-resident automata against their torch twins, and against the host's states."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.grammar.limits import GrammarLimits  # noqa: E402
from radixlang.grammar.native import NativeEngine  # noqa: E402
from radixlang.grammar.tables import automaton_table  # noqa: E402
from radixlang.grammar.vocabulary import Vocabulary  # noqa: E402
from radixlang.kernels import automaton, reference  # noqa: E402
from radixlang.kernels.automaton_tables import ENDED, Tables  # noqa: E402
from radixlang.messages import GrammarSpec  # noqa: E402

ROWS, SPAN, SLOTS, VOCAB = 40, 16, 5, 5000


def random_tables(seed: int) -> Tables:
    chance = np.random.default_rng(seed)
    words = -(-VOCAB // 32)
    lengths = chance.integers(0, 7, VOCAB)
    states = chance.integers(3, SPAN + 1, SLOTS)
    following = np.full((SLOTS * SPAN, 256), -1, np.int16)
    for slot, count in enumerate(states):
        following[slot * SPAN : slot * SPAN + count] = chance.integers(-1, count, (count, 256))
    state = np.where(chance.random(ROWS) < 0.7, chance.integers(0, SLOTS, ROWS) * SPAN, -1)
    following[::2] = -1  # where nothing but the end may follow
    arrays = (
        np.where(state >= 0, state + chance.integers(0, states[state // SPAN]), -1).astype(np.int32),
        following,
        chance.integers(0, 30, SLOTS * SPAN).astype(np.int32),
        chance.integers(-(2**31), 2**31, (30, words)).astype(np.int32),
        np.repeat(states - 1, SPAN).astype(np.int32),
        (following < 0).all(1).astype(np.int8),
        chance.integers(0, 256, max(1, lengths.sum())).astype(np.uint8),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
    )
    return Tables(*(torch.from_numpy(array).to(DEVICE) for array in arrays), span=SPAN)


def copied(tables: Tables) -> Tables:
    return tables._replace(state=tables.state.clone())


@pytest.mark.parametrize("vocab", [VOCAB, 4096, 33, 5100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("skip", [False, True])
def test_masks(vocab, dtype, skip) -> None:
    tables = random_tables(vocab)
    logits = torch.randn((ROWS - 3, vocab), device=DEVICE).to(dtype)
    rows = torch.randperm(ROWS, device=DEVICE)[: ROWS - 3].int()
    drawn = torch.randint(-1, 3, (ROWS - 3,), device=DEVICE, dtype=torch.int32) if skip else None
    expected = logits.clone()
    reference.mask_logits(expected, rows, tables, drawn)
    automaton.mask_logits(logits, rows, tables, drawn)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("skip", [False, True])
def test_steps(seed, skip) -> None:
    tables = random_tables(seed)
    twin, seen = copied(tables), set()
    for turn in range(4):
        rows = torch.randperm(ROWS, device=DEVICE)[: ROWS - 3].int()
        tokens = torch.randint(-2, VOCAB + 2, (ROWS - 3,), device=DEVICE)
        drawn = torch.randint(-1, 3, (ROWS - 3,), device=DEVICE, dtype=torch.int32) if skip else None
        mine, theirs = torch.ones((2, ROWS - 3), dtype=torch.int32, device=DEVICE)
        automaton.advance(tokens, rows, mine, tables, drawn)
        reference.advance(tokens, rows, theirs, twin, drawn)
        assert torch.equal(tables.state, twin.state), turn
        assert torch.equal(mine, theirs), turn
        seen |= set(mine.tolist())
    assert seen == {1, 1 | ENDED}


def test_nothing_to_do() -> None:
    tables = random_tables(0)
    none = tables.state[:0]
    automaton.advance(torch.zeros(0, dtype=torch.int64, device=DEVICE), none, none, tables)
    automaton.mask_logits(torch.zeros((0, VOCAB), device=DEVICE), tables.state[:0], tables)


def test_the_host_says_the_same() -> None:
    """Texts drawn at random under the masks: states and masks are the host's at every token."""
    tokens = [
        *(bytes([i]) for i in range(32, 127)),
        b"yes",
        b"no",
        b"may",
        b"maybe",
        b"12",
        b"123",
        b", ",
        "é".encode(),
    ]
    end = len(tokens)
    vocabulary = Vocabulary([*tokens, b""], (end,), lambda text: [tokens.index(c.encode()) for c in text])
    grammar = NativeEngine(vocabulary, GrammarLimits()).compile(
        GrammarSpec("regex", "((yes|no|maybe), )*[0-9]{2,5}é?")
    )
    table = automaton_table(grammar)
    assert table is not None
    count, lengths = len(table.mask_row), [len(token) for token in vocabulary.tokens]
    letters = np.frombuffer(b"".join(vocabulary.tokens), np.uint8).copy()
    closed = (table.next_byte < 0).all(1).astype(np.int8)
    tables = Tables(
        *(
            torch.from_numpy(array).to(DEVICE)
            for array in (
                np.full(8, 0, np.int32), table.next_byte, table.mask_row, table.masks,
                np.full(count, count - 1, np.int32), closed, letters, np.cumsum([0, *lengths]).astype(np.int32),
            )
        ),
        span=512,
    )  # fmt: skip
    rows = torch.arange(8, dtype=torch.int32, device=DEVICE)
    hosts = [grammar.start() for _ in range(8)]
    chance = torch.Generator().manual_seed(1)
    for _ in range(30):
        logits = torch.randn((8, vocabulary.size), generator=chance).to(DEVICE)
        automaton.mask_logits(logits, rows, tables)
        drawn = logits.argmax(-1)
        for host, one, token in zip(hosts, logits, drawn.tolist(), strict=True):
            mask = np.zeros(vocabulary.words, np.int32)
            host.fill(mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: vocabulary.size].astype(bool)
            assert not (one.isfinite().cpu().numpy() & ~bits).any()
            assert one.isfinite().any()
            assert host.accept(token)
        flags = torch.zeros(8, dtype=torch.int32, device=DEVICE)
        automaton.advance(drawn, rows, flags, tables)
        assert tables.state.tolist() == [table.state_of(host) for host in hosts]
        assert flags.tolist() == [ENDED * host.finished for host in hosts]
