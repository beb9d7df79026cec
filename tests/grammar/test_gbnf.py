"""Escapes of GBNF grammars keep their meaning."""

from __future__ import annotations

import pytest

from radixlang.grammar.gbnf import plain_escapes
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.messages import GrammarSpec


@pytest.fixture(scope="module")
def engine(vocabulary):
    return LlguidanceEngine(vocabulary, GrammarLimits())


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (r'root ::= ("\u00e9" | "\x41" | [\n\t]){3}', ["éA\n", "\t\t\t"], ["AA", r"\u00e9AA"]),
        (r'root ::= "a\x01b"{2} "\[" [\u00e9-\u00ff\x41\]]', ["a\x01ba\x01b[é", "a\x01ba\x01b[]"], ["a\x01b[é"]),
        (r'root ::= "\U0001F600\x22\u005c\x0a" # "\x"', ['😀"\\\n'], ["😀"]),
        (r'root ::= [^"\\\x7F\x00-\x1F]+ "\\u"', ["ab\\u"], ["\x01\\u"]),
    ],
)
def test_escapes_name_their_characters(engine, vocabulary, text: str, right: list[str], wrong: list[str]) -> None:
    grammar = engine.compile(GrammarSpec("ebnf", text))
    for sample in [*right, *wrong]:
        state = grammar.start()
        taken = all(map(state.accept, vocabulary.encode(sample))) and state.can_end
        assert taken == (sample in right), sample


def test_everything_else_stays() -> None:
    text = 'root ::= "a b" [a-z] # "\\x41"\n'
    assert plain_escapes(text) == text
