"""Expressions that the library is given: they mean what Python's `re` says."""

from __future__ import annotations

import re

import pytest

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
