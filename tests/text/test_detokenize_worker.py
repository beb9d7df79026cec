"""Requests side by side: where text ends, what counts, and which reason wins."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.errors import RequestError
from radixlang.sampling_params import SamplingParams
from radixlang.text.detokenize_worker import DetokenizerState, TextDelta
from tests.text import toy

TOKENIZER = toy.byte_level()
EOS = TOKENIZER.eos_ids[0]
END = TOKENIZER.token_to_id("<|im_end|>")
LENGTH = {"type": "length", "length": 8}
STOPPED = {"type": "stop", "matched": EOS}


def start(**sampling: object) -> DetokenizerState:
    state = DetokenizerState(TOKENIZER)
    state.open("r", [], SamplingParams(**sampling))
    return state


def fields(delta: TextDelta | None) -> tuple[str, list[int], int, dict | None]:
    assert delta is not None
    return delta.text, list(delta.ids), delta.completion_tokens, delta.finish_reason


def test_plain_text_and_end() -> None:
    state = start()
    assert fields(state.push("r", [*b"hi "])) == ("hi ", [*b"hi "], 3, None)
    assert fields(state.push("r", [*"é".encode()][:1])) == ("", [0xC3], 4, None)
    assert fields(state.push("r", np.array([0xA9, 33], np.int32))) == ("é!", [0xA9, 33], 6, None)
    assert fields(state.push("r", [0xC3], LENGTH)) == ("\ufffd", [0xC3], 7, LENGTH)
    assert len(state) == 0
    assert state.push("r", [1]) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "hi"),
        ({"no_stop_trim": True}, "hi"),
        ({"skip_special_tokens": False}, "hi"),
        ({"skip_special_tokens": False, "no_stop_trim": True}, "hi</s>"),
    ],
)
def test_the_end_token_counts_but_has_no_text(options: dict[str, bool], text: str) -> None:
    assert fields(start(**options).push("r", [*b"hi", EOS], STOPPED)) == (text, [*b"hi", EOS], 3, STOPPED)


def test_a_stop_token_that_is_ordinary_text() -> None:
    reason = {"type": "stop", "matched": ord("!")}
    assert fields(start().push("r", [*b"hi!"], reason))[0] == "hi"
    assert fields(start(no_stop_trim=True).push("r", [*b"hi!"], reason))[0] == "hi!"


@pytest.mark.parametrize("reason", [None, LENGTH, STOPPED])
def test_a_stop_string_cuts_the_group_and_beats_other_reasons(reason: dict | None) -> None:
    ids = [*b"a STOP tail", *([EOS] if reason is STOPPED else [])]
    delta = start(stop=("STOP",)).push("r", ids, reason)
    assert fields(delta) == ("a ", [*b"a STOP"], 6, {"type": "stop", "matched": "STOP"})
    assert delta.stopped_by_text


def test_a_stop_over_several_steps_and_tokens_in_flight() -> None:
    state = start(stop=("STOP",), stop_regex=(r"\d\d",))
    assert fields(state.push("r", [*b"x ST"])) == ("x ", [*b"x ST"], 4, None)
    assert fields(state.push("r", [*b"OP"])) == ("", [*b"OP"], 6, {"type": "stop", "matched": "STOP"})
    assert state.push("r", [*b"late"], LENGTH) is None
    state.open("r", [], SamplingParams(stop_regex=(r"\d\d",), no_stop_trim=True))
    assert fields(state.push("r", [*b"a12"]))[0] == "a12"


def test_held_back_text_comes_out_at_the_end() -> None:
    state = start(stop=("STOP",))
    assert fields(state.push("r", [*b"x STO"]))[0] == "x "
    assert fields(state.push("r", [EOS], STOPPED))[0] == "STO"


def test_stops_are_not_looked_for_before_min_new_tokens() -> None:
    state = start(stop=("ab",), min_new_tokens=4)
    assert fields(state.push("r", [*b"abx"])) == ("abx", [*b"abx"], 3, None)
    assert fields(state.push("r", [*b"xab"])) == ("x", [*b"xab"], 6, {"type": "stop", "matched": "ab"})
    assert fields(start(stop=("ab",), min_new_tokens=2).push("r", [*b"ab"]))[3] is not None


@pytest.mark.parametrize("skip", [True, False])
def test_a_special_token_named_as_stop_string(skip: bool) -> None:
    reason = {"type": "stop", "matched": "<|im_end|>"}
    delta = start(stop=("<|im_end|>",), skip_special_tokens=skip).push("r", [*b"hi", END, 65])
    assert fields(delta) == ("hi", [*b"hi", END], 3, reason)
    delta = start(stop=("</s>",), skip_special_tokens=skip).push("r", [*b"hi", EOS], STOPPED)
    assert fields(delta) == ("hi", [*b"hi", EOS], 3, {"type": "stop", "matched": "</s>"})


def test_a_stop_list_of_ones_own_leaves_the_end_token_working() -> None:
    assert fields(start(stop=("@@never@@",)).push("r", [*b"hi", EOS], STOPPED)) == (
        "hi",
        [*b"hi", EOS],
        3,
        STOPPED,
    )


def test_no_tokens_at_all() -> None:
    assert fields(start(stop=("x",)).push("r", [], {"type": "length", "length": 0}))[:3] == ("", [], 0)


def test_requests_do_not_mix_and_can_be_closed() -> None:
    state = start()
    state.open("s", [0xC3], SamplingParams())
    assert state.push("r", [0xE6]).text == ""
    assert state.push("s", [0xA9]).text == "é"
    assert state.push("r", [0x97, 0xA5]).text == "日"
    state.close("r")
    state.close("unknown")
    assert len(state) == 1


def test_a_bad_expression_is_refused_when_the_request_opens() -> None:
    with pytest.raises(RequestError, match="stop_regex"):
        start(stop_regex=("a*",))
