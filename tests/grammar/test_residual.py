"""The residual check over a real grammar: vetoes, backtracking, rollback, copies, numbers at the end."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native import NativeEngine
from radixlang.grammar.residual import ResidualGrammar, ResidualState
from radixlang.grammar.schema import normalise
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import bits, small_vocabulary

llguidance = pytest.importorskip("llguidance")

EOS = 256
PAIRS = [b'", "', b'"]', b"]}", b'": ', b"1,", b"22", b"tr", b"ue"]


class Vocabulary:
    """Bytes, the end, and a few tokens of several bytes that close values in their middle."""

    tokens = [bytes([i]) for i in range(256)] + [b""] + PAIRS
    eos_ids = (EOS,)
    words = (len(tokens) + 31) // 32

    def beginning_with(self, data: bytes) -> np.ndarray:
        return np.array([i for i, token in enumerate(self.tokens) if token.startswith(data)])


class _Tokenizer:
    eos_token_id, bos_token_id = EOS, None
    tokens = [bytes([i]) for i in range(256)] + [b"\xff[256]"] + PAIRS
    special_token_ids = (EOS,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class LibraryState:
    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def fill(self, row: np.ndarray) -> None:
        mask = self.matcher.compute_bitmask()
        row.view(np.uint8)[:] = 0
        row.view(np.uint8)[: len(mask)] = np.frombuffer(mask, dtype=np.uint8)

    def filling(self, row: np.ndarray) -> Any:
        self.fill(row)
        yield from ()

    def ready(self) -> None:
        return None

    def accept(self, token: int) -> bool:
        if token == EOS:
            return self.matcher.is_accepting()
        return self.matcher.validate_tokens([token]) == 1 and self.matcher.consume_token(token)

    def rollback(self, tokens: int) -> None:
        assert self.matcher.rollback(tokens)

    def forced(self) -> list[int]:
        return self.matcher.compute_ff_tokens()

    @property
    def can_end(self) -> bool:
        return self.matcher.is_accepting()

    @property
    def finished(self) -> bool:
        return self.matcher.is_stopped()

    def copy(self) -> LibraryState:
        return LibraryState(self.matcher.deep_copy())


class LibraryGrammar:
    nbytes = 1
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokenizer()))

    def __init__(self, schema: Any) -> None:
        options = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
        text = llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={**options, "json_allowed_escapes": 'nrbtf\\"'}
        )
        self.matcher = llguidance.LLMatcher(self.tokenizer, text)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def start(self) -> LibraryState:
        return LibraryState(self.matcher.deep_copy())


def start(schema: Any) -> ResidualState:
    normalised = normalise(schema)
    assert normalised.checks is not None, "the schema has nothing residual"
    return ResidualGrammar(LibraryGrammar(normalised.schema), normalised.checks, Vocabulary()).start()


def _only(text: str) -> Any:
    """A schema of one value, which the normaliser does not count."""
    return {"type": "string", "pattern": f"^{text}$"}


def feed(state: ResidualState, text: str) -> int:
    """How many bytes of the text are accepted."""
    for count, byte in enumerate(text.encode()):
        if not state.accept(byte):
            return count
    return len(text.encode())


def allowed(state: ResidualState) -> set[int]:
    row = np.zeros((len(_Tokenizer.tokens) + 31) // 32, dtype=np.uint32)
    state.fill(row)
    return {i for i in range(len(_Tokenizer.tokens)) if row[i >> 5] >> (i & 31) & 1}


def test_a_repeated_item_is_vetoed_where_it_ends() -> None:
    state = start({"type": "array", "uniqueItems": True, "items": {"type": "string"}})
    assert feed(state, '["a", "a"') == len('["a", "a')
    assert ord('"') not in allowed(state)
    assert _Tokenizer.tokens.index(b'"]') in allowed(state), "longer tokens are refused only when they are chosen"
    assert not state.accept(_Tokenizer.tokens.index(b'"]'))
    assert _Tokenizer.tokens.index(b'"]') not in allowed(state)
    assert state.backtrack() == 0
    assert feed(state, 'b"]') == 3
    assert state.can_end
    assert state.accept(EOS)


def test_numbers_end_with_the_byte_after_them() -> None:
    state = start({"type": "array", "uniqueItems": True, "items": {"type": "integer"}})
    assert feed(state, "[1, 1]") == len("[1, 1")
    assert ord("]") not in allowed(state)
    assert feed(state, "2]") == 2
    state = start({"type": "array", "uniqueItems": True, "items": {"type": "number"}})
    assert feed(state, "[1, 1.0]") == len("[1, 1.0"), "1 and 1.0 are the same number"


def test_a_root_number_is_checked_before_the_end() -> None:
    state = start({"type": "integer", "multipleOf": 123457})
    assert feed(state, "12345") == 5
    assert not state.can_end
    assert EOS not in allowed(state)
    assert not state.accept(EOS)
    assert feed(state, "7") == 1
    assert state.can_end
    assert EOS in allowed(state)


def test_a_nested_value_is_checked_when_it_closes() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "contains": {"const": 7}}, "b": {}}}
    state = start(schema)
    assert feed(state, '{"a": [1]') == len('{"a": [1')
    assert feed(state, ', 7], "b": [1]}') == len(', 7], "b": [1]}')
    assert state.can_end


def test_below_a_condition_only_the_governing_value_decides() -> None:
    schema = {"anyOf": [{"type": "array", "contains": {"const": 1}}, {"type": "array", "contains": {"const": 2}}]}
    assert feed(start(schema), "[[2], 2]") == 8
    assert feed(start(schema), "[3]") == 2


def test_rollback_and_copy_restore_the_check() -> None:
    state = start({"type": "array", "uniqueItems": True, "items": {"type": "string"}})
    assert feed(state, '["a", "b"') == 9
    other = state.copy()
    state.rollback(2)
    assert feed(state, 'a"') == 1
    assert feed(other, ', "b"') == 4
    assert feed(other, 'c"]') == 3
    assert other.can_end
    assert not state.can_end


def test_a_dead_end_is_undone_and_not_entered_again() -> None:
    # After [1, 1 only a comma may follow, and it is vetoed: the second 1 must be taken back.
    state = start(
        {"type": "array", "uniqueItems": True, "minItems": 3, "maxItems": 3, "items": {"enum": [1, 2, 3]}}
    )
    rng, tokens = random.Random(5), 0
    for _ in range(200):
        choice = sorted(allowed(state))
        token = choice[0] if rng.random() < 0.8 else rng.choice(choice)
        if state.accept(token):
            tokens += 1
            if token == EOS:
                break
        else:
            tokens -= state.backtrack()
            assert tokens >= 0
    else:
        pytest.fail("never ended")
    assert sorted(json.loads(bytes(state._text))) == [1, 2, 3]


def test_the_budget_ends_in_a_clear_failure() -> None:
    state = start({"type": "array", "uniqueItems": True, "minItems": 2, "maxItems": 2, "items": _only("a")})

    def run() -> None:
        for _ in range(1000):
            token = min(allowed(state))
            if not state.accept(token):
                state.backtrack()

    with pytest.raises(GrammarFailure, match="cannot be completed"):
        run()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True, "maxItems": 4, "items": {"enum": [1, "a", None, True]}},
        {"contains": {"type": "string"}, "minContains": 2, "type": "array", "items": {"enum": ["x", 1]},
         "maxItems": 4},
        {"type": "object", "properties": {"k": {"type": "integer", "minimum": 0, "maximum": 99}},
         "required": ["k"], "not": {"properties": {"k": {"multipleOf": 3}}}, "additionalProperties": False},
    ],
)  # fmt: skip
def test_walks_end_valid(schema: Any) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    rng, ended = random.Random(1), 0
    for _ in range(25):
        state = start(schema)
        for _ in range(150):
            choice = sorted(allowed(state))
            closing = [t for t in choice if Vocabulary.tokens[t][-1:] in (b"]", b"}", b'"') or t == EOS]
            token = rng.choice(closing) if closing and rng.random() < 0.6 else rng.choice(choice)
            if not state.accept(token):
                state.backtrack()
            elif token == EOS:
                ended += 1
                assert validator.is_valid(json.loads(bytes(state._text)))
                break
    assert ended >= 20


def test_forced_tokens_stop_before_a_wrong_value() -> None:
    state = start({"type": "array", "uniqueItems": True, "minItems": 2, "maxItems": 2, "items": _only("aaaa")})
    assert feed(state, '["aaaa", "a') == len('["aaaa", "a')
    assert bytes(b"".join(Vocabulary.tokens[t] for t in state.forced())) in (b"aaa", b"aa", b"a", b"")


def test_numbers_stay_within_a_double() -> None:
    cases = [("[1e308, 1e30", 12), ("[1e309", 5), ("[0.1e308]", 9), ("[1e-999]", 8), ('{"a1e999": 1}', 13)]
    for text, count in cases:
        state = ResidualGrammar(LibraryGrammar({}), None, Vocabulary()).start()
        assert feed(state, text) == count, text


def test_a_number_too_large_never_takes_back_what_a_client_has() -> None:
    state = ResidualGrammar(LibraryGrammar({}), None, Vocabulary()).start()
    assert feed(state, "[1e999") == 5
    assert not state.revises
    assert state.backtrack() == 0
    assert not allowed(state) & {*b"0123456789", Vocabulary.tokens.index(b"22")}, "other digits need no draw each"
    for digit in b"9876543210":
        assert not state.accept(digit)
        assert state.backtrack() == 0
    assert feed(state, "]") == 1
    assert state.can_end


def test_tokens_that_make_no_number_of_one_that_is_too_large() -> None:
    """Tokens that begin with a digit are looked at once a digit was too much, whatever else they hold."""
    vocabulary = small_vocabulary(*"0123456789e.-+", "0.5", "1,2", "9e9")
    grammar = NativeEngine(vocabulary, GrammarLimits()).compile(GrammarSpec("json_schema", '{"type": "number"}'))
    state = grammar.start()
    for token in "7e179":
        assert state.accept("0123456789e.-+".index(token))
    assert not state.accept(9)
    assert state.backtrack() == 0
    row = np.zeros(vocabulary.words, np.int32)
    state.fill(row)
    assert np.flatnonzero(bits(row)).tolist() == [len(vocabulary.tokens) - 1], "only the end"
    assert not state.accept(14), "0.5 makes no number of it"
