"""Patterns of schemas as sets of strings, look-arounds among them, against Python's `re`."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from radixlang.grammar.schema.automaton import Product, searches
from radixlang.grammar.schema.pattern import Language, UnsupportedPatternError
from radixlang.grammar.schema.regex import has_anchor, parse, searched

SHORT = ["".join(text) for n in range(1, 6) for text in itertools.product("ab-", repeat=n)]
TEXTS = [*SHORT, "", "a\nb", "é", "aéb"]
NOT_TAKEN = re.compile("looks ahead within|too large|too many|an assertion is repeated")


def drawn(random_: random.Random, depth: int, looks: bool) -> str:
    r"""A pattern; `\B` only behind something, since Python does not find it in an empty text."""
    kind = random_.random()
    if depth == 0 or kind < 0.28:
        return random_.choice(["a", "b", "-", "[ab]", ".", "[^a]", r"\w", r"\W", "ab"])
    if kind < 0.45:
        return drawn(random_, depth - 1, looks) + drawn(random_, depth - 1, looks)
    if kind < 0.57:
        return f"(?:{drawn(random_, depth - 1, looks)}|{drawn(random_, depth - 1, looks)})"
    if kind < 0.7:
        return f"(?:{drawn(random_, depth - 1, looks)})" + random_.choice(["*", "+", "?", "{2}", "{1,3}"])
    if kind < 0.75:
        return random_.choice(["^", "$"])
    if looks and kind < 0.83:
        return random_.choice(["(?=", "(?!"]) + drawn(random_, depth - 1, random_.random() < 0.5) + ")"
    if looks and kind < 0.88:
        return random_.choice([r"\b", r"a\B"])
    if looks and kind < 0.95:
        return random_.choice(["(?<=", "(?<!"]) + random_.choice(["a", "ab", r"\w", "[a-]b", "^a", "^"]) + ")"
    return drawn(random_, depth - 1, looks)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_random_patterns_are_found_where_python_finds_them(seed: int) -> None:
    random_ = random.Random(seed)
    checked = looking = 0
    refused: list[str] = []
    while checked < 300:
        source = drawn(random_, 4, looks=True)
        expected = re.compile(source.replace("$", r"\Z"), re.ASCII)
        language = Language(((source, True),))
        try:
            found = {text for text in TEXTS if language.matches(text)}
            written = language.source() if checked % 3 == 0 else None
        except UnsupportedPatternError as error:
            refused.append(str(error))
            continue
        assert found == {text for text in TEXTS if expected.search(text)}, source
        if written is not None:  # what it is written back as needs no look-arounds
            again = re.compile(written.replace("$", r"\Z"), re.ASCII)
            assert found == {text for text in TEXTS if again.search(text)}, (source, written)
            assert not re.search(r"\(\?[=!<]|(?<!\\)\\[bB]", written)
        checked += 1
        looking += bool(re.search(r"\(\?[=!<]|\\[bB]", source))
    assert looking > 50
    assert all(map(NOT_TAKEN.search, refused))


@pytest.mark.parametrize(
    ("source", "inside", "outside"),
    [
        (r"^(?!.*--)[a-z-]+(?<!-)$", ["a-b", "x"], ["a--b", "a-", ""]),
        (r"^(?:(?!end)[a-z])*end$", ["end", "xend"], ["endend", "xendx"]),
        (r"\bcat\b", ["a cat", "cat"], ["concat", "cats"]),
        (r"^(?=.{3,5}$)(?=[^x]*x)\w+$", ["abx", "xxxxx"], ["ab", "abc", "abcdex"]),
        (r"^(?:a(?=b)|b(?=a|$))+$", ["ab", "abab", "b"], ["aa", "ba", "a"]),
        (r"^\w+(?<=ab|cd)!$", ["ab!", "xcd!"], ["ac!", "!"]),
        (r"^(?!(?:a|b(?=c))$)\w$", ["b", "c"], ["a"]),
        (r"(?<=^|,)x(?=,|$)", ["x", "a,x,b"], ["ax", "xa"]),
    ],
)
def test_look_arounds(source: str, inside: list[str], outside: list[str]) -> None:
    language = Language(((source, True),))
    assert [text for text in inside + outside if language.matches(text)] == inside
    again = re.compile(language.source().replace("$", r"\Z"))
    assert [text for text in inside + outside if again.search(text)] == inside
    none = Language(((source, True), (source, False)))
    assert none.empty()
    assert not Language(((source, False),)).empty()


@pytest.mark.parametrize("source", [r"(?<=a$)b", r"(?<=a(?=b))b", r"(?<=\ba)b"])
def test_what_is_not_followed_says_so(source: str) -> None:
    with pytest.raises(UnsupportedPatternError, match="it looks ahead within what it looks behind for"):
        Language(((source, True),)).matches("ab")


@pytest.mark.parametrize(
    ("terms", "inside", "outside"),
    [
        (((r"^x(?!.*\bno\b)[a-z ]+$", True),), ["xa", "xnot a"], ["x no", "x"]),
        (((r"^(?=.*A)(?=.*1).{4,70}$", True),), ["A1xx", "xx1A"], ["A1", "xxxx"]),
        (((r"(?i)^a", True), (r"\bb\b", False), (r"(?!x)b$", False)), ["Ac", "abc"], ["a b c", "ab", "b"]),
        ((("a|^b$", False),), ["", "cb"], ["a", "b"]),
    ],
)
def test_a_pattern_that_looks_around_says_the_same(
    terms: tuple[tuple[str, bool], ...], inside: list[str], outside: list[str]
) -> None:
    language = Language(terms)
    again = Language(((language.looking(), True),))
    for each in language, again:
        assert [text for text in inside + outside if each.matches(text)] == inside


def test_an_assertion_may_be_repeated_in_a_group() -> None:
    assert Language(((r"^((?=a)|b)+((?<=b))?a$", True),)).matches("bba")
    with pytest.raises(UnsupportedPatternError, match="an assertion is repeated"):
        Language(((r"^(?=a)*a$", True),)).matches("a")


@pytest.mark.parametrize(
    "source",
    [
        "^(?:(?=(?:a|b)*a(?:a|b){30}c)[abc])*$",
        "^(?:(?!" + "|".join(f"a{{{n}}}b" for n in range(1, 40)) + ")[ab])*$",
        "^" + "(?:(?=[ab]*a)|(?=[ab]*b)|c)*" * 12 + "$",
        r"^(?:\b|\B|a)*(?:a|b)*a(?:a|b){40}$",
        "^" + "".join([f"(?!.*{chr(97 + i % 26)}{i}$)" for i in range(200)]) + "[a-z0-9]*$",
        "^x" + "".join([f"(?=.*{chr(97 + i % 26)}{i})" for i in range(200)]) + ".*$",
        "^[a-z0-9]*" + "".join([f"(?<!{chr(97 + i % 26)}{i})" for i in range(200)]) + "$",
        r"^(?:\b\w+\b\W+){1,60}$",
    ],
)
def test_hostile_look_arounds_end_soon(source: str) -> None:
    before = time.process_time()
    try:
        for _ in Product(searches(((source, True),)), 1_500).states():
            pass
    except UnsupportedPatternError:
        pass
    assert time.process_time() - before < 5


def test_states_from_which_nothing_fits_are_left_out() -> None:
    product = Product(searches((("^[a-z]+$", True), ("^x", False))))
    for state in product.states():
        for ranges in product.edges(state).values():
            assert all(low >= ord("a") and high <= ord("z") for low, high in ranges)
    assert not any(low <= ord("x") <= high for ranges in product.edges(0).values() for low, high in ranges)


@pytest.mark.parametrize(
    "source",
    [r"^(?:^a)?b$", "^a|b$", "(^|,)x(,|$)", "^(a|^b)c$", "^$|^[a-z]+$", "(?:^a$)|b", "x$y|z", "^(?:a|b$)c?$"],
)
def test_anchors_within_a_pattern_are_not_passed_on(source: str) -> None:
    language = Language(((source, True),))
    texts = [*SHORT, "", "c", "ac", "bc", "x", ",x", "x,y", "ax", "z", "xy"]
    written = language.source()
    for text in texts:
        assert language.matches(text) == bool(re.search(source.replace("$", r"\Z"), text)), text
        assert language.matches(text) == bool(re.search(written.replace("$", r"\Z"), text)), text
    assert not has_anchor(searched(parse(written).tree)), (
        "libraries take anchors at the ends of alternatives alone"
    )
