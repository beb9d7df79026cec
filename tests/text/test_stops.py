"""Stop strings and expressions: the same outcome however the text is cut, and what is held back meanwhile."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.errors import RequestError
from radixlang.text.stop_regex import MAX_STATES, WINDOW, compile_stop_regex, compile_stop_regexes
from radixlang.text.stops import StopMatcher

REGEXES = [
    r"\d+",
    r"a.b",
    r"(ab|ba)+c",
    r"[^ab]c",
    r"(?i)AB",
    r"^a",
    r"ab$",
    r"\bb",
    r"a{2,3}b?c",
    r"(?:a+b)+?c",
    r"[a-c]\s\S",
    r"(?s)a.\.",
    r"b*a",
]


def run(pieces: list[str], stop=(), regex=(), keep=False) -> tuple[str, str | None]:
    matcher, out, matched = StopMatcher(stop, regex, keep), [], None
    for piece in pieces:
        text, matched = matcher.push(piece)
        out.append(text)
    if matched is None:
        out.append(matcher.finish())
    return "".join(out), matched


def expected(text: str, stop=(), regex=(), keep=False) -> tuple[str, str | None]:
    """The rule, written down slowly: the first prefix that ends with a stop; the longest such; strings first."""
    for end in range(1, len(text) + 1):
        found = [(end - len(one), 0, i, one) for i, one in enumerate(stop) if one and text[:end].endswith(one)]
        for i, pattern in enumerate(regex):
            match = re.compile(rf"(?:{pattern})\Z" if not pattern.startswith("(?") else pattern + r"\Z").search(
                text[:end]
            )
            if match:
                found.append((match.start(), 1, i, pattern))
        if found:
            start, _, _, one = min(found)
            return text[: end if keep else start], one
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    at = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(at)]


@settings(max_examples=600, deadline=None)
@given(
    st.text("abc1 .\n", max_size=24),
    st.lists(st.text("abc1 ", max_size=4), max_size=3),
    st.lists(st.sampled_from(REGEXES), max_size=2, unique=True),
    st.lists(st.integers(0, 24), max_size=6),
    st.booleans(),
)
def test_any_cut_gives_what_the_rule_says(text, stop, regex, places, keep) -> None:
    wanted = expected(text, stop, regex, keep)
    assert run([text], stop, regex, keep) == wanted
    assert run(list(text), stop, regex, keep) == wanted
    assert run(cut(text, places), stop, regex, keep) == wanted


@settings(max_examples=300, deadline=None)
@given(st.text("ab1", max_size=16), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_than_could_become_a_stop(text, stop) -> None:
    matcher, shown = StopMatcher(stop), ""
    for index, character in enumerate(text, 1):
        piece, matched = matcher.push(character)
        if matched:
            return
        shown += piece
        held = max((n for one in stop for n in range(1, len(one)) if text[:index].endswith(one[:n])), default=0)
        assert shown == text[: index - held]


def test_a_stop_inside_a_piece() -> None:
    assert run(["say hello STOP and more"], ["STOP"]) == ("say hello ", "STOP")
    assert run(["say ST", "OP and"], ["STOP"], keep=True) == ("say STOP", "STOP")


def test_what_might_become_a_stop_waits_and_is_then_let_through() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.push("x </e") == ("x ", None)
    assert matcher.push("m") == ("</em", None)
    assert matcher.push("</") == ("", None)
    assert matcher.finish() == "</"


def test_an_expression_holds_back_only_a_match_that_is_possible() -> None:
    matcher = StopMatcher((), [r"Answer: \d+\."])
    assert matcher.push("The Answer") == ("The ", None)
    assert matcher.push(" is") == ("Answer is", None)
    assert matcher.push(". Answer: 4") == (". ", None)
    assert matcher.push("2") == ("", None)
    assert matcher.push(". Bye") == ("", r"Answer: \d+\.")
    assert matcher.push("more") == ("", r"Answer: \d+\.")


def test_of_matches_that_end_together_the_longest_counts() -> None:
    assert run(["xbba"], (), ["b*a"]) == ("x", "b*a")
    assert run(["xababc"], (), ["(?:ab)*c"]) == ("x", "(?:ab)*c")
    assert run(["xab"], ["b", "ab"], ["xab"]) == ("", "xab")
    assert run(["xab"], ["b", "ab"], ["a."]) == ("x", "ab")


def test_ignoring_case() -> None:
    assert run(["x eNd"], (), ["(?i)[D-F]N[c-e]"]) == ("x ", "(?i)[D-F]N[c-e]")
    assert run(["ß9"], (), ["(?i)[A-Z]9"]) == ("ß9", None)


def test_an_unbounded_expression_holds_back_one_window() -> None:
    matcher = StopMatcher((), ["a.*z"])
    shown = "".join(matcher.push(one)[0] for one in "a" + "b" * 1000)
    assert len(shown) == 1001 - WINDOW
    text, matched = matcher.push("z")
    assert matched == "a.*z"
    assert len(text) <= 1


def test_stops_that_may_not_match_yet_are_passed_over_for_good() -> None:
    for stops in ({"stop": ["ab", "xaby"]}, {"stop_regex": ["ab", "xaby"]}):
        matcher = StopMatcher(**stops)
        assert matcher.push("xab", may_match=False) == ("", None)
        assert matcher.push("-") == ("xab-", None)
        assert matcher.push("xab", may_match=False) == ("", None)
        assert matcher.push("y..") == ("", "xaby")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "not a valid expression"),
        ("a*", "matches empty text"),
        ("a(?=b)", "not supported"),
        (r"(a)\1", "not supported"),
        ("((a{90}){90})", "too large"),
        ("a++b", "not supported"),
    ],
)
def test_expressions_that_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        compile_stop_regex(pattern)
    assert caught.value.param == "stop_regex"


def test_no_expression_takes_exponential_time() -> None:
    """A backtracking matcher would not come back from this."""
    assert run(["a" * 400], (), [r"(a+)+b", r"(a|aa)*c", r"a*a*a*a*d"])[1] is None


def test_what_repeats_nothing_is_read_at_once() -> None:
    """Python's parser takes counts of up to four thousand millions, of nothing as well."""
    assert run(["xa"], (), ["(?:){1000000000}a"]) == ("x", "(?:){1000000000}a")
    assert run(["xa"], (), ["(?:(){4000000000}){4000000000}a"]) == ("x", "(?:(){4000000000}){4000000000}a")


def test_all_expressions_of_a_request_share_one_bound() -> None:
    patterns = [f"{letter}.{{{MAX_STATES // 8}}}" for letter in "abcdefgh"]
    compile_stop_regexes(patterns[:7])
    with pytest.raises(RequestError, match="8 stop_regex patterns are too large together"):
        compile_stop_regexes(patterns)
