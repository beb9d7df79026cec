"""What grammars know of the tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.grammar.vocabulary import Vocabulary
from tests.grammar.conftest import allowed, small_vocabulary


@given(st.lists(st.binary(max_size=4), max_size=30), st.binary(min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_look_ups_by_bytes(words, data) -> None:
    vocabulary = small_vocabulary(*words)
    found = vocabulary.beginning_with(data).tolist()
    assert sorted(found) == [i for i, word in enumerate(vocabulary.tokens) if word.startswith(data)]
    if data[-2:].isspace() and len(data) > 1:
        return
    expected = {
        at: {
            word[len(data) - at]
            for word in vocabulary.tokens
            if word.startswith(data[at:]) and len(word) > len(data) - at
        }
        for at in range(len(data))
    }
    behind = {
        at: {byte for byte in range(256) if bits >> byte & 1} for at, bits in vocabulary.reaching_beyond(data)
    }
    assert behind == {at: bytes_ for at, bytes_ in expected.items() if bytes_}


@given(st.lists(st.binary(max_size=2), max_size=30), st.lists(st.integers(0, 30), max_size=9))
def test_next_bytes(words, picked) -> None:
    vocabulary = small_vocabulary(*words)
    ids = {index % vocabulary.size for index in picked}
    nexts = vocabulary.next_bytes(vocabulary.mask_of(sorted(ids)))
    for byte in range(256):
        alone = {index for index, word in enumerate(vocabulary.tokens) if word == bytes([byte])}
        assert nexts >> byte & 1 == (not alone or bool(alone & ids))


def test_the_last_of_several_spaces_may_belong_to_the_next_word() -> None:
    places = small_vocabulary("a", " ").reaching_beyond(b"a  ")
    assert places == ((2, None),)


@given(st.lists(st.binary(max_size=3), max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_whether_allowed_tokens_begin_alike(words, picked) -> None:
    vocabulary = small_vocabulary(*words)
    ids = {index % vocabulary.size for index in picked}
    firsts = {vocabulary.tokens[index][:1] for index in ids}
    alike = len(firsts) == 1 and (firsts != {b""} or len(ids) == 1)
    assert vocabulary.differ(vocabulary.mask_of(sorted(ids))) != alike


def test_masks() -> None:
    vocabulary = Vocabulary([b"a"] * 70, (69, 500), lambda text: [], size=100, special={"<s>": 3})
    assert vocabulary.words == 4
    assert allowed(vocabulary.mask_of([0, 31, 32, 99])) == {0, 31, 32, 99}
    assert allowed(vocabulary.eos_mask) == {69}
    assert vocabulary.tokens[3] == vocabulary.tokens[69] == vocabulary.tokens[80] == b""
    assert len(vocabulary.tokens) == 100
    assert 3 not in vocabulary.order


def test_a_model_narrower_than_its_tokenizer() -> None:
    vocabulary = Vocabulary([b"a", b"b", b"c"], (2,), lambda text: [], size=2)
    assert vocabulary.eos_ids == ()
    assert not vocabulary.eos_mask.any()
    assert vocabulary.tokens == [b"a", b"b"]


@pytest.mark.parametrize("model", ["vocabulary", "gemma", "qwen"])
def test_of_a_model(request, model) -> None:
    vocabulary = request.getfixturevalue(model)
    assert vocabulary.eos_ids
    assert not any(vocabulary.tokens[index] for index in vocabulary.special.values())
    text = 'Hello, world! {"a": [1, 2.5]} 日本語 😀 <|im_end|> \n\n  x'
    assert b"".join(vocabulary.tokens[token] for token in vocabulary.encode(text)) == text.encode()
    assert np.array_equal(vocabulary.lengths, [len(token) for token in vocabulary.tokens])
