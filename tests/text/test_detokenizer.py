"""Incremental text equals the text decoded at once, for any ids; only incomplete bytes are held back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.text.detokenizer import IncrementalDetokenizer
from radixlang.text.tokenizer import Tokenizer
from tests.conftest import real_tokenizer
from tests.text import toy

TEXTS = [
    "  two spaces, tabs\t\tand\n\nlines ",
    "日本語と中文, 한국어",
    "😀👩‍👩‍👧‍👦🇩🇪 x\u0301 q\u0323\u0308 e\u0301 𝔘𝔫𝔦",
    "a\ufffdb and more",
    "<|im_start|>user<end_of_turn> <bos>",
]


def joined(tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip: bool, tail: list[int]) -> str:
    reader = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip, prompt_tail_ids=tail)
    parts, at, turn = [], 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)]
        parts.append(reader.push(ids[at : at + size]))
        at, turn = at + size, turn + 1
    return "".join(parts) + reader.finish()


def check_any_ids(tokenizer: Tokenizer, examples: int) -> None:
    # half of the ids come from the tokens that are bytes or markers: the interesting ones are rare otherwise
    odd = [index for index, data in enumerate(tokenizer.vocab_bytes()) if len(data) == 1 or data[:1] > b"\x7f"][
        :600
    ]
    odd += sorted(tokenizer.special_ids)[:20]
    ids = st.lists(st.one_of(st.integers(0, tokenizer.vocab_size + 3), st.sampled_from(odd)), max_size=40)

    @settings(max_examples=examples, deadline=None)
    @given(ids, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans())
    def check(ids: list[int], sizes: list[int], skip: bool) -> None:
        assert joined(tokenizer, ids, sizes, skip, []) == tokenizer.decode(ids, skip_special_tokens=skip)

    check()


@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma3_path", "qwen_path"])
def test_any_ids_of_real_models(fixture: str, request: pytest.FixtureRequest) -> None:
    tokenizer = real_tokenizer(request.getfixturevalue(fixture))
    check_any_ids(tokenizer, 200)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert joined(tokenizer, ids, [1], False, []) == tokenizer.decode(ids, skip_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) in (text, tokenizer.backend.decode(ids, False))


@pytest.mark.parametrize("tokenizer", [toy.byte_level(), toy.sentencepiece(), toy.sentencepiece(False)])
def test_any_ids_of_toys(tokenizer: Tokenizer) -> None:
    check_any_ids(tokenizer, 300)


def test_a_real_replacement_character_flows() -> None:
    tokenizer = toy.byte_level()
    reader = IncrementalDetokenizer(tokenizer)
    parts = [reader.push([byte]) for byte in "a\ufffdb".encode()]
    assert parts == ["a", "", "", "\ufffd", "b"]


def test_only_the_incomplete_character_is_held_back() -> None:
    reader = IncrementalDetokenizer(toy.byte_level())
    smile = "😀".encode()
    assert reader.push([*b"ok ", *smile[:3]]) == "ok "
    assert reader.push([smile[3]]) == "😀"
    assert reader.push([smile[0]]) == ""
    assert reader.push(b"x") == "\ufffdx"
    assert reader.push(smile[:2]) == ""
    assert reader.finish() == "\ufffd"
    assert reader.finish() == ""


def test_first_space_and_prompt_tail() -> None:
    tokenizer = toy.sentencepiece()
    hi = tokenizer.encode("hi", add_special_tokens=False)
    assert IncrementalDetokenizer(tokenizer).push(hi) == "hi"
    assert IncrementalDetokenizer(tokenizer, prompt_tail_ids=hi).push(hi) == " hi"
    sign = [3 + byte for byte in "日".encode()]
    assert IncrementalDetokenizer(tokenizer, prompt_tail_ids=sign[:1]).push(sign[1:]) == "日"


def test_special_tokens_shown_or_not() -> None:
    tokenizer = toy.byte_level()
    ids = tokenizer.encode("a</s>b", add_special_tokens=False)
    assert IncrementalDetokenizer(tokenizer).push(ids) == "ab"
    assert IncrementalDetokenizer(tokenizer, skip_special_tokens=False).push(ids) == "a</s>b"


def test_the_cost_of_a_token_does_not_grow() -> None:
    """Counts the bytes looked up instead of the time: one look-up a token, however long the text is."""
    tokenizer = toy.byte_level()
    reader, looked_up = IncrementalDetokenizer(tokenizer), []
    reader._bytes_of = lambda index: looked_up.append(index) or tokenizer.token_bytes(index)
    ids = random.Random(1).choices(range(256), k=2000)
    for index in ids:
        reader.push([index])
    assert looked_up == ids
