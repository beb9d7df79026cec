"""Speculation on remote APIs: how many calls are made, and that results are those of a program without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import radixlang as rl
from radixlang.errors import BackendError, ProgramError, UnsupportedError
from radixlang.lang.backends.base import Backend, Capabilities, Piece, Prompt
from radixlang.lang.backends.speculative import Speculative, turn_pattern
from radixlang.lang.chat_templates import ChatTemplate, get_chat_template
from radixlang.lang.params import SamplingParams

SPEC = "Name: Ann Lee\nBorn: 1990\nJob: pilot\nEnd"


class Writer(Backend):
    """Continues `book` from wherever a prompt has got to; a token is a letter. A prompt that left the book gets
    `other`."""

    name = "the writer"

    def __init__(self, book: str, chat: bool = False, other: str = "?") -> None:
        self.book = book
        self.other = other
        self.capabilities = Capabilities(chat=chat, completion=not chat, logprobs=not chat)
        self.calls: list[tuple[Prompt, SamplingParams]] = []
        self.tell_tokens = True

    def chat_template(self) -> ChatTemplate:
        return get_chat_template("default")

    def speculative(self, num_tokens: int) -> Backend:
        return Speculative(self, num_tokens)

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        self.calls.append((prompt, params))
        known = "" if self.capabilities.chat else prompt.text
        text = self.book[len(known) :] if self.book.startswith(known) else self.other
        reason = "stop"
        if len(text) > params.max_new_tokens:
            text, reason = text[: params.max_new_tokens], "length"
        hits = [text.find(stop) for stop in params.stops if stop in text]
        if hits:
            text, reason = text[: min(hits)], "stop"
        meta: dict[str, Any] = {
            "finish_reason": {"type": reason},
            "completion_tokens": len(text),
            "prompt_tokens": 9,
        }
        if params.return_logprob and self.tell_tokens:
            meta["output_token_logprobs"] = [[-1.0, None, letter] for letter in text]
        return [Piece(text, dict(meta)) for _ in range(params.n)]


def card(spec: int | None) -> Any:
    @rl.function(num_api_spec_tokens=spec)
    def program(s: Any) -> None:
        s += "Name:" + rl.gen("name", stop="\n", max_tokens=20)
        s += "\nBorn:" + rl.gen("born", stop="\n", max_tokens=20)
        s += "\nJob:" + rl.gen("job", stop="\n", max_tokens=20)

    return program


def read(program: Any, backend: Backend) -> list[str]:
    state = program.run(backend=backend, temperature=0)
    return [state["name"], state["born"], state["job"], state.text()]


def test_one_call_instead_of_three_and_the_same_answers() -> None:
    plain, fast = Writer(SPEC), Writer(SPEC)
    expected = [" Ann Lee", " 1990", " pilot", SPEC.removesuffix("\nEnd")]
    assert read(card(None), plain) == expected
    assert read(card(64), fast) == expected
    assert len(plain.calls) == 3
    assert len(fast.calls) == 1
    assert fast.calls[0][1].max_new_tokens == 20 + 64
    assert fast.calls[0][1].stops == []


def test_a_surplus_that_is_too_short_costs_another_call_and_changes_nothing() -> None:
    for tokens in range(40):
        backend = Writer(SPEC)
        assert read(card(tokens), backend) == [" Ann Lee", " 1990", " pilot", SPEC.removesuffix("\nEnd")]
        assert 1 <= len(backend.calls) <= 3


def test_a_program_that_goes_another_way_makes_its_own_call() -> None:
    @rl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += "Name:" + rl.gen("name", stop="\n")
        s += "\nHome:" + rl.gen("home", stop="\n")

    backend = Writer(SPEC, other=" Rome\nmore")
    state = program.run(backend=backend)
    assert [state["name"], state["home"]] == [" Ann Lee", " Rome"]
    assert len(backend.calls) == 2


def test_a_limit_holds_to_the_token() -> None:
    @rl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += "Name:" + rl.gen("name", max_tokens=4)
        s += " Lee\nBorn:" + rl.gen("born", max_tokens=3)

    backend = Writer(SPEC)
    state = program.run(backend=backend)
    assert [state["name"], state["born"]] == [" Ann", " 19"]
    assert state.get_meta_info("name")["finish_reason"] == {"type": "length"}
    assert state.get_meta_info("born")["completion_tokens"] == 3
    assert len(backend.calls) == 1


def test_branches_do_not_share_a_surplus() -> None:
    @rl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += "Name:" + rl.gen("name", stop="\n")
        s += "\nBorn:"
        forks = s.fork(3)
        forks += rl.gen("born", stop="\n")
        forks.join()

    backend = Writer(SPEC)
    state = program.run(backend=backend, temperature=1)
    assert state["born"] == [" 1990"] * 3
    assert len(backend.calls) == 3  # one of the branches reads the surplus, two draw for themselves


@pytest.mark.parametrize("more", [{"temperature": 0.5}, {"n": 2}, {"regex": " .*"}, {"return_logprob": True}])
def test_what_was_drawn_otherwise_is_no_answer(more: dict[str, Any]) -> None:
    @rl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += "Name:" + rl.gen("name", stop="\n")
        s += "\nBorn:" + rl.gen("born", stop="\n", **more)

    backend = Writer(SPEC)
    state = program.run(backend=backend, temperature=0)
    assert (state["born"][0] if "n" in more else state["born"]) == " 1990"
    assert len(backend.calls) == 2


def test_without_token_texts_it_steps_aside() -> None:
    backend = Writer(SPEC)
    backend.tell_tokens = False
    assert read(card(64), backend)[:3] == [" Ann Lee", " 1990", " pilot"]
    assert len(backend.calls) == 4  # the first one was asked for in vain


# ---- chat models ----


def chat(spec: int, turn: Callable[[], Any]) -> Any:
    @rl.function(num_api_spec_tokens=spec)
    def program(s: Any) -> None:
        s += rl.user("Describe somebody.")
        s += rl.assistant(turn())

    return program


def three() -> Any:
    return (
        "Name:"
        + rl.gen("name", stop="\n")
        + "\nBorn:"
        + rl.gen("born", stop="\n")
        + "\nJob:"
        + rl.gen("job")
        + "\nEnd"
    )


def test_a_chat_model_writes_the_turn_in_one_call() -> None:
    backend = Writer(SPEC, chat=True)
    state = chat(100, three).run(backend=backend)
    assert [state["name"], state["born"], state["job"]] == [" Ann Lee", " 1990", " pilot"]
    assert state.messages()[-1] == {"role": "assistant", "content": SPEC}
    assert len(backend.calls) == 1
    prompt, params = backend.calls[0]
    assert prompt.messages == [{"role": "user", "content": "Describe somebody."}]
    assert params.max_new_tokens == 100


def test_what_names_a_part_of_a_turn_makes_the_turn_so_far() -> None:
    @rl.function(num_api_spec_tokens=100)
    def program(s: Any) -> None:
        s += rl.user("Describe somebody.")
        with s.assistant():
            s += "Name:"
            with s.var_scope("born"):
                s += rl.gen("name", stop="\n") + "\nBorn:" + rl.gen("year", stop="\n")
            s += "\nJob:" + rl.separate_reasoning(rl.gen("job", stop="\n"), model_type="qwen3")

    backend = Writer(SPEC, chat=True)
    state = program.run(backend=backend)
    assert state["born"] == " Ann Lee\nBorn: 1990"
    assert state["job"].strip() == "pilot"
    assert state.messages()[-1]["content"].startswith("Name: Ann Lee\nBorn: 1990\nJob:")


def test_a_chat_model_that_misses_the_form_is_asked_three_times() -> None:
    backend = Writer("I would rather not.", chat=True)
    state = chat(100, three).run(backend=backend)
    with pytest.raises(ProgramError, match="in the program's form in 3 tries, but: 'I would rather not"):
        _ = state["name"]
    assert len(backend.calls) == 3


def test_a_turn_that_is_one_gen_is_an_ordinary_call() -> None:
    backend = Writer(SPEC, chat=True)
    state = chat(100, lambda: rl.gen("all", max_tokens=7)).run(backend=backend)
    assert state["all"] == "Name: A"
    assert len(backend.calls) == 1


@pytest.mark.parametrize(
    "parts",
    [
        ["A", SamplingParams(regex="x"), "B", SamplingParams()],
        ["A", SamplingParams(temperature=0.5), "B", SamplingParams()],
        ["A", SamplingParams(), SamplingParams()],
    ],
)
def test_turns_that_cannot_be_read_back_are_refused(parts: list[Any]) -> None:
    backend = Speculative(Writer(SPEC, chat=True), 10)
    with pytest.raises(UnsupportedError, match="the writer does not support"):
        asyncio.run(backend.assistant_turn(Prompt("", role="assistant"), parts))


@pytest.mark.parametrize(
    ("parts", "text", "found"),
    [
        (["A: ", {"stop": "\n"}, "\nB: ", {}], "A: one\nB: two", ("one", "two")),
        (["A: ", {"stop": "."}, " B: ", {}], "A: one. B: two", ("one", "two")),
        (["A: ", {"stop": "."}, " B: ", {}], "A: one B: two", ("one", "two")),
        (["A: ", {}, " B: ", {}, " C"], "A: one B: two C and more", ("one", "two C and more")),
        (["A: ", {}, " B: ", {}, " C"], "A: one B: two C", ("one", "two")),
        (["A: ", {}, " B: ", {}, " C"], "A: one B: two", ("one", "two")),
        ([" A.*", {}, "B"], "A.*xB", ("x",)),
        (["A", {"stop": ["x", "y"]}, "y", {}], "A1y2", ("1", "2")),
        (["A", {}, "B"], "Z", None),
    ],
)
def test_blanks_are_read_by_the_texts_around_them(parts: list[Any], text: str, found: Any) -> None:
    pattern = turn_pattern([part if isinstance(part, str) else SamplingParams(**part) for part in parts])
    match = pattern.match(text)
    assert (match.groups() if match else None) == found


def test_an_answer_that_ends_early_for_no_reason_is_an_error() -> None:
    class Odd(Writer):
        async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
            (piece,) = await super().generate(prompt, params)
            piece.meta["finish_reason"] = {"type": "content_filter"}
            return [piece]

    with pytest.raises(BackendError, match="ended an answer before its length"):
        asyncio.run(Speculative(Odd("ab"), 5).generate(Prompt(""), SamplingParams()))
