"""`regex` constraints with look-arounds, word boundaries and ends of lines, against Python's `re.fullmatch`."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native import NativeEngine, NativeGrammar
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec
from tests.grammar.test_pattern import drawn

BYTES = Vocabulary(
    [*(bytes([b]) for b in range(256)), b"ab", "é-".encode(), b""], (258,), lambda text: [*text.encode()]
)
ENGINE = NativeEngine(BYTES, GrammarLimits())


def accepts(grammar: NativeGrammar, text: str) -> bool:
    state = grammar.start()
    return all(map(state.accept, text.encode())) and state.can_end


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"^(?=.*[A-Z])(?=.*\d)(?=.*[a-z]).{4,6}$", ["aA1x", "aaaa", "A1a", "aA1xxxx", "éA1x", "Ab٣é"]),
        (r"[^\n]*\bfoo\b.*", ["foo", "a foo b", "foot", "éfoo", "foo é"]),
        (r"(?a)[^\n]*\bfoo\b.*", ["éfoo", "foo", "xfoo"]),
        (r"(?m)(?:^\w+$\n?)+", ["a", "a\nb", "a\n\nb", "a\n", "a b"]),
        (r"(?m)a$\n^b", ["a\nb", "ab"]),
        (r"((?!--)[a-z-])+", ["a-b", "a--b", "-"]),
        (r"\w+(?<!ing)", ["do", "doing", "ing", "in"]),
        (r"(?i)(?!.*(?:bad|evil))[a-z ]+", ["good", "BAD", "an Evil", "ba d"]),
        (r"(?:(?<=a)b|a|(?<!a)c)*", ["ab", "b", "cab", "ac", "abc"]),
        (r"(?=é)..", ["éa", "aé", "é"]),
        (r"N: (?!.*\bno\b).*", ["N: yes", "N: not", "N: a no", "N: no"]),
        (r"a(?:(?=.(?<=ab)c)b|c|(?!\B)-)*", ["abc", "abb", "ac", "a-", "ac-", "ac--"]),
    ],
)
def test_means_what_it_means_in_python(pattern: str, texts: list[str]) -> None:
    assert ENGINE.supports(GrammarSpec("regex", pattern)) is None
    grammar = ENGINE.compile(GrammarSpec("regex", pattern))
    expected = re.compile(pattern)
    assert {text for text in texts if accepts(grammar, text)} == {t for t in texts if expected.fullmatch(t)}
    assert any(map(expected.fullmatch, texts))
    assert not all(map(expected.fullmatch, texts))


def test_random_expressions() -> None:
    random_ = random.Random(7)
    short = ["".join(text) for n in range(1, 5) for text in itertools.product("ab-", repeat=n)]
    texts = [*short, "é", "aé", "a\nb"]
    checked = 0
    refused: list[tuple[str, bool]] = []
    while checked < 120:
        pattern = drawn(random_, 4, looks=True)
        expected = {text for text in texts if re.fullmatch(pattern.replace("$", r"\Z"), text)}
        try:
            reason = ENGINE.supports(GrammarSpec("regex", pattern))
            grammar = None if reason else ENGINE.compile(GrammarSpec("regex", pattern))
        except GrammarError as error:
            refused.append((str(error), bool(expected)))
            continue
        if grammar is None:
            continue
        assert {text for text in texts if accepts(grammar, text)} == expected, pattern
        checked += 1
    assert all(
        "looks ahead within" in sentence or ("no text" in sentence and not some) for sentence, some in refused
    )


def test_masks_hold_the_tokens_that_go_on() -> None:
    grammar = ENGINE.compile(GrammarSpec("regex", r"(?:(?!ab)[abé-])+(?<!-)"))
    state = grammar.start()
    for token in b"ba":
        mask = grammar.mask(state.place)
        allowed = {i for i in range(259) if mask[i // 32] >> (i % 32) & 1}
        after = {i for i in range(258) if (ahead := state.copy()).accept(i) and ahead is not None}
        assert allowed == after | ({258} if state.can_end else set())
        assert state.accept(token)
    mask = grammar.mask(state.place)
    assert not mask[ord("b") // 32] >> (ord("b") % 32) & 1
    assert not mask[256 // 32] & 1


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (r"(?=.*a.{20}b)[ab]*", "it has too many states to compare"),
        (r"b(?<=\bb)a", "it looks ahead within what it looks behind for"),
        (r"(?=\w{5000})\w*", "it is too large to compare"),
        (r"(?=b)a", "matches no text"),
    ],
)
def test_what_cannot_be_held_says_why(pattern: str, sentence: str) -> None:
    with pytest.raises(GrammarError, match=sentence) as caught:
        ENGINE.compile(GrammarSpec("regex", pattern))
    assert caught.value.param == "regex"
