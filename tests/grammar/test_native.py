"""The native engine: masks against llguidance, states, hostile input, threads."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from radixlang.grammar import native
from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native import NativeEngine, NativeGrammar
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import allowed, at_once, bits, small_vocabulary

PATTERNS = {
    r"((25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)": ["192.168.1.254"],
    r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}": ["(555) 123-4567"],
    r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}": ["ada.lovelace@example.org"],
    r"(a|aa)*b(a|b){12}c": ["aaab" + "ab" * 6 + "c"],
    r'\{"name": "[^"\\\n]{1,20}", "age": (0|[1-9][0-9]{0,2})\}': ['{"name": "Ada Lové", "age": 36}'],
    r'"[^"\\]{0,200}"': ['"' + "a long text, " * 12 + '"'],
    r"Reasoning: [^\n]{1,300}": ["Reasoning: because 日本語 😀 it is"],
    r"(?i)straße|[k-m]{3}": ["STRAßE", "LKM"],
    r"|a|[^\x00-\x7f]+": ["", "a", "éß"],
    r"(yes|no|maybe)( and (yes|no|maybe))*": ["yes and no and maybe"],
}


@pytest.fixture(scope="module")
def engine(vocabulary) -> NativeEngine:
    return NativeEngine(vocabulary, GrammarLimits())


def compiled(engine: NativeEngine, pattern: str) -> NativeGrammar:
    return engine.compile(GrammarSpec("regex", pattern))


@pytest.fixture(scope="module", params=["vocabulary", "gemma"])
def both(request):
    llg = pytest.importorskip("radixlang.grammar.llg")
    vocabulary = request.getfixturevalue(request.param)
    return NativeEngine(vocabulary, GrammarLimits()), llg.LlguidanceEngine(vocabulary, GrammarLimits())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_are_those_of_llguidance(both, pattern) -> None:
    """But for forced states, where it narrows its masks to one token."""
    spec, vocabulary = GrammarSpec("regex", pattern), both[0].vocabulary
    ours, theirs = (engine.compile(spec) for engine in both)
    mine, other = np.zeros((2, vocabulary.words), np.int32)
    for text in PATTERNS[pattern]:
        one, two = ours.start(), theirs.start()
        for token in vocabulary.encode(text):
            one.fill(mine)
            two.fill(other)
            if two.forced():
                assert allowed(other) <= allowed(mine)
            else:
                assert (mine == other).all()
            assert one.can_end == two.can_end
            assert one.accept(token)
            assert two.accept(token)
        assert one.can_end
        assert two.can_end


def test_random_walks_end_in_matches(engine, vocabulary) -> None:
    chance = random.Random(7)
    row = np.zeros(vocabulary.words, np.int32)
    for pattern in PATTERNS:
        for _ in range(5):
            state, text = compiled(engine, pattern).start(), b""
            for step in range(400):
                state.fill(row)
                here = bits(row)
                ends = [token for token in vocabulary.eos_ids if here[token]]
                here[ends] = 0
                tokens = np.flatnonzero(here)
                assert bool(ends) == state.can_end
                assert state.finished == (not len(tokens))
                if ends and (step > 40 or chance.random() < 0.3 or state.finished):
                    assert state.accept(ends[0])
                    break
                token = int(chance.choice(tokens))
                assert state.accept(token)
                text += vocabulary.tokens[token]
            else:
                continue
            assert re.fullmatch(pattern, text.decode()), (pattern, text)


def test_accept_refuses_what_the_mask_does(engine, vocabulary) -> None:
    state = compiled(engine, r"a[bc]{2,4}d?").start()
    row = np.zeros(vocabulary.words, np.int32)
    state.fill(row)
    here = allowed(row)
    for token in [*range(0, vocabulary.size, 7), -1, vocabulary.size, 1 << 40, *vocabulary.special.values()]:
        assert state.copy().accept(token) == (token in here)


def test_rollback_copy_and_the_end(engine, vocabulary) -> None:
    end = vocabulary.eos_ids[0]
    state = compiled(engine, r"abc(def)?").start()
    a, b, c = (vocabulary.encode(letter)[0] for letter in "abc")
    assert not state.accept(end)
    assert all(map(state.accept, [a, b, c]))
    assert state.can_end
    assert not state.finished
    other = state.copy()
    assert state.accept(end)
    assert state.accept(end)
    assert state.finished
    assert state.forced() == []
    assert not state.accept(a)
    row = np.zeros(vocabulary.words, np.int32)
    state.fill(row)
    assert allowed(row) == set(vocabulary.eos_ids)
    state.rollback(3)
    assert not state.can_end
    assert state.accept(c)
    state.rollback(0)
    assert state.can_end
    state.rollback(99)
    assert not state.accept(b)
    assert state.accept(a)
    assert other.accept(vocabulary.encode("d")[0])
    assert not other.can_end


def test_forced_tokens(engine, vocabulary) -> None:
    state = compiled(engine, r"(é|É) = [0-9]").start()
    assert state.forced() == [] or vocabulary.tokens[state.forced()[0]] == b"\xc3"
    assert state.accept(vocabulary.encode("é")[0])
    assert b"".join(vocabulary.tokens[token] for token in state.forced()) == b" = "


def test_masks_beyond_the_bound_are_forgotten(engine, vocabulary, monkeypatch) -> None:
    monkeypatch.setattr(native, "MAX_MASK_BYTES", 4 * vocabulary.words * 10)
    grammar = compiled(engine, r"[0-9]{60}")
    state = grammar.start()
    row = np.zeros(vocabulary.words, np.int32)
    for _ in range(60):
        state.fill(row)
        assert state.accept(vocabulary.encode("7")[0])
        assert grammar.nbytes < 4 * vocabulary.words * 12 + grammar.machine.nbytes + 60 * 200
    assert state.finished


def test_threads_share_a_grammar(engine, vocabulary) -> None:
    pattern = r'"[^"\\]{0,100}"'
    tokens = vocabulary.encode('"one two three four five six seven eight nine ten"')
    expected, rows = compiled(engine, pattern), []
    state = expected.start()
    for token in tokens:
        rows.append(expected.mask(state.place).copy())
        assert state.accept(token)
    shared, failures = compiled(engine, pattern), []

    def run() -> None:
        row = np.zeros(vocabulary.words, np.int32)
        for _ in range(20):
            mine = shared.start()
            for token, right in zip(tokens, rows, strict=True):
                mine.fill(row)
                if not (row == right).all() or not mine.accept(token):
                    failures.append(token)

    at_once(run, 6)
    assert not failures


def test_ten_thousand_choices(engine, vocabulary) -> None:
    choices = [f"item {i * 7919 % 100003} of {'many ' * (i % 5)}" for i in range(10_000)]
    grammar = engine.compile(GrammarSpec("choice", json.dumps(choices)))
    assert grammar.nbytes < 4 << 20
    row = np.zeros(vocabulary.words, np.int32)
    for choice in choices[::997]:
        state = grammar.start()
        for token in vocabulary.encode(choice):
            state.fill(row)
            assert token in allowed(row)
            assert state.accept(token)
        assert state.can_end


def test_only_the_empty_text(engine, vocabulary) -> None:
    for spec in (GrammarSpec("regex", ""), GrammarSpec("regex", "$^"), GrammarSpec("choice", '[""]')):
        state = engine.compile(spec).start()
        row = np.zeros(vocabulary.words, np.int32)
        state.fill(row)
        assert allowed(row) == set(vocabulary.eos_ids)
        assert state.finished
        assert state.forced() == []


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("choice", "[]", "not empty"), ("choice", '{"a": 1}', "list of texts"), ("choice", "[1]", "list of texts"),
        ("choice", "nonsense", "not valid JSON"), ("choice", r'["\ud800"]', "surrogate"),
        ("regex", "[^\\s\\S]", "matches no text"), ("regex", "a^b", "matches no text"),
    ],
)  # fmt: skip
def test_what_cannot_be_served(engine, kind, text, message) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        engine.compile(GrammarSpec(kind, text))
    assert caught.value.param == kind


def test_what_no_token_writes() -> None:
    engine = NativeEngine(small_vocabulary("a", "b", "ab"), GrammarLimits())
    for spec in (GrammarSpec("regex", "c+"), GrammarSpec("choice", '["c", "bc"]')):
        with pytest.raises(GrammarError, match="tokens can"):
            engine.compile(spec)
    # What can be written is what is left, and there is no way into what cannot.
    for spec in (GrammarSpec("regex", "a(b|c)|b[c-z]|abc"), GrammarSpec("choice", '["ab", "ac", "bc", "abc"]')):
        state = engine.compile(spec).start()
        row = np.zeros(1, np.int32)
        state.fill(row)
        assert allowed(row) == {0, 2}
        assert state.accept(0)
        state.fill(row)
        assert allowed(row) == {1}
        assert state.forced() == [1]


def test_tokens_that_only_fit_across_a_place() -> None:
    """A vocabulary without single bytes may lead to a place where no token fits: that request fails, alone."""
    engine = NativeEngine(small_vocabulary("a", "xb"), GrammarLimits())
    state = engine.compile(GrammarSpec("regex", "ab|axb")).start()
    assert state.accept(0)
    row = np.zeros(1, np.int32)
    state.fill(row)
    assert allowed(row) == {1}
    state = engine.compile(GrammarSpec("regex", "ab")).start()
    assert state.accept(0)
    with pytest.raises(GrammarFailure, match="no token"):
        state.fill(row)


def test_supports(engine) -> None:
    assert engine.supports(GrammarSpec("regex", r"\d+")) is None
    assert engine.supports(GrammarSpec("choice", "[]")) is None
    assert "ebnf" in (engine.supports(GrammarSpec("ebnf", 'start: "a"')) or "")
    for pattern in ("(?>a)b", r"(a)\1", "(", r"\p{L}", "(a|b)*a(a|b){20}"):
        assert "does not take this regex" in (engine.supports(GrammarSpec("regex", pattern)) or "")
