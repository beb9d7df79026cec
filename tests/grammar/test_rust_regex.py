"""Expressions that the library is given: they mean what Python's `re` says."""

from __future__ import annotations

import re

import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.grammar.rust_regex import as_rust
from radixlang.messages import GrammarSpec

TEXTS = [
    "a",
    "é",
    "ि",
    "٣",
    "²",
    "_",
    " ",
    "\x1c",
    "\u3000",
    "]",
    "[",
    "&",
    "-",
    "~",
    "+",
    ".",
    "\\",
    "^",
    "a]",
    "\n",
]


@pytest.fixture(scope="module")
def engine(vocabulary):
    return LlguidanceEngine(vocabulary, GrammarLimits())


@pytest.mark.parametrize(
    "pattern",
    [r"\w", r"\W", r"\s", r"\S", r"[\w.]", r"[^\w]", r"[^\W]", r"[\s]", r"[^\S]", r"[[a]", r"[]a]", r"[^]a]",
     r"[a&&b]", r"[+--]", r"[a~~b]", r"[^^]", r"[\]]", r"\\", r"a\]", r"[a]\]", r"[-a]", r"[\\-\]]"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Possible")
def test_means_the_same(engine, vocabulary, pattern: str) -> None:
    grammar = engine.compile(GrammarSpec("regex", pattern))
    for text in TEXTS:
        state = grammar.start()
        taken = all(state.accept(token) for token in vocabulary.encode(text))
        assert (taken and state.can_end) == bool(re.fullmatch(pattern, text)), (text, as_rust(pattern))


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("(?=a)(?>a)", "atomic groups at position 5"),
        (r"\ba++", "possessive repeats at position 4"),
        (r"(a)(?=b)\1", "back-references at position 8"),
        ("(?=a", "cannot be read: missing \\)"),
        ("(?<=a)a", "look-behind at position 0"),
        (r"[\b]a(?m:^)", "the flag m at position 5"),
    ],
)
def test_looking_around_is_named_last(pattern: str, sentence: str) -> None:
    with pytest.raises(GrammarError, match=sentence):
        as_rust(pattern)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("a++ab", "possessive repeats"),
        (r"\p{L}{2}+", "possessive repeats"),
        ("a+?+", "repeats of repeats"),
        ("(?>a)b", "atomic groups"),
        ("(?=a)b", "look-ahead"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "back-references"),
        (r"a\b", "word boundaries"),
        ("(?im)^a$", "the flag m"),
        ("(?-i:a)(?m:b)", "the flag m"),
    ],
)
def test_what_no_automaton_states_is_named(engine, pattern: str, name: str) -> None:
    with pytest.raises(GrammarError, match=f"regex cannot be held: it uses {name} at position") as caught:
        engine.compile(GrammarSpec("regex", pattern))
    assert caught.value.param == "regex"


@pytest.mark.parametrize("pattern", ["[a++(?=]+", r"\p{L}+x", r"\++", r"a{2}?b+?", "(?i:a)(b)", r"\x{41}+"])
def test_what_looks_like_it_is_taken(engine, pattern: str) -> None:
    engine.compile(GrammarSpec("regex", pattern))


def test_broken_expressions_are_told_in_the_words_of_python(engine) -> None:
    with pytest.raises(GrammarError, match="regex cannot be read: missing \\), unterminated subpattern") as caught:
        engine.compile(GrammarSpec("regex", "a("))
    assert caught.value.param == "regex"
