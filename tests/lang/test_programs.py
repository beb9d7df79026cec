"""What programs mean, on a backend without a model: text, turns, variables, batches."""

from __future__ import annotations

import contextlib
import re

import pytest

import radixlang as sgl
from radixlang.errors import ConfigError, ProgramError
from radixlang.lang.backends.base import Capabilities
from radixlang.lang.global_config import global_config
from tests.lang.fakes import FakeBackend, ask, failing, until

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# ---- text, turns, variables ----


def test_text_goes_on_in_order():
    @sgl.function
    def program(s, word):
        s += "say " + word + sgl.gen("one")
        s += " and" + sgl.gen("two", max_tokens=3)
        return 7

    backend = FakeBackend()
    state = program.run("hello", backend=backend, temperature=0.5)
    assert state.text() == "say hello[hello] and[and]"
    assert state["one"] == "[hello]"
    assert state["two"] == "[and]"
    assert state.ret_value == 7
    assert [call.text for call in backend.calls] == ["say hello", "say hello[hello] and"]
    assert [p.max_new_tokens for p in backend.params] == [128, 3]
    assert [p.temperature for p in backend.params] == [0.5, 0.5]
    assert state.get_meta_info("one")["completion_tokens"] == 1
    assert "one" in state
    assert "three" not in state
    until(lambda: backend.ended == backend.began and backend.began)


def test_turns_become_text_and_messages():
    @sgl.function
    def program(s):
        s += sgl.system("Be nice.")
        s += sgl.user("Hi")
        s += sgl.assistant(sgl.gen("a"))
        with s.user():
            s += "More"
        s.assistant(sgl.gen("b"))
        with sgl.user():
            s += "Bye"
        s += sgl.assistant_begin() + " ok" + sgl.assistant_end()

    backend = FakeBackend()
    state = program.run(backend=backend)
    assert state.text() == (
        "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n[<|im_start|>assistant]<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n"
        "<|im_start|>assistant\n[<|im_start|>assistant]<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n ok<|im_end|>\n"
    )
    assert [m["role"] for m in state.messages()] == ["system", *["user", "assistant"] * 3]
    assert state.messages()[-1] == {"role": "assistant", "content": "ok"}
    assert backend.calls[0].messages == [
        {"role": "system", "content": "Be nice."},
        {"role": "user", "content": "Hi"},
    ]
    assert backend.calls[0].role == "assistant"
    assert backend.params[0].stop == ["<|im_end|>"]


def test_the_default_system_prompt_comes_first():
    @sgl.function
    def program(s):
        s += sgl.user("Hi")

    state = program.run(backend=FakeBackend(template="qwen"))
    assert state.messages()[0] == {"role": "system", "content": "You are a helpful assistant."}
    joined = program.run(backend=FakeBackend(template="llama-2-chat"))
    assert joined.text() == "[INST] Hi [/INST]"


def test_turns_that_do_not_fit_are_errors():
    @sgl.function
    def nested(s):
        s += sgl.user_begin() + sgl.assistant("x")

    @sgl.function
    def unopened(s):
        s += sgl.user_end()

    for program in (nested, unopened):
        with pytest.raises(ProgramError, match="turn of"):
            program.run(backend=FakeBackend()).text()


def test_variables_are_set_scoped_and_missing():
    @sgl.function
    def program(s):
        s["x"] = 3
        assert s["x"] == 3
        with s.var_scope("both"):
            s += "a b" + sgl.gen("g")
        s += sgl.gen("g") + "."
        with pytest.raises(KeyError, match="nothing"):
            s["nothing"]

    state = program.run(backend=FakeBackend())
    assert state["both"] == "a b[b]"
    assert state["g"] == "[b[b]]"  # the later one
    assert state["x"] == 3


def test_the_text_of_a_block_wins_over_what_had_its_name_inside():
    @sgl.function
    def program(s):
        with s.var_scope("v"):
            s += "a"
            with s.var_scope("v"):
                s += "b"
            assert s["v"] == "b"
            s += sgl.gen("v")

    state = program.run(backend=FakeBackend())
    assert state["v"] == state.text() == "ab[ab]"


def test_a_block_that_has_not_ended_has_no_text_yet():
    @sgl.function
    def program(s):
        with s.var_scope("v"):
            s += "a"
            with pytest.raises(KeyError, match="no variable 'v'"):
                s["v"]

    assert program.run(backend=FakeBackend())["v"] == "a"


def test_a_block_ends_when_what_it_raises_is_caught():
    @sgl.function
    def program(s):
        for block in (s.user(), s.var_scope("v")):
            with contextlib.suppress(ZeroDivisionError), block:
                s += "a"
                s += str(1 / 0)
        s += sgl.assistant("b")

    state = program.run(backend=FakeBackend())
    assert state["v"] == "a"
    assert [turn["role"] for turn in state.messages()[-2:]] == ["user", "assistant"]


def test_n_answers_are_a_list_and_the_text_goes_on_with_the_first():
    @sgl.function
    def program(s):
        s += "q" + sgl.gen("x", n=3)

    state = program.run(backend=FakeBackend())
    assert state["x"] == ["[q]"] * 3
    assert len(state.get_meta_info("x")) == 3
    assert state.text() == "q[q]"


def test_types_become_patterns():
    @sgl.function
    def program(s):
        s += sgl.gen("i", dtype=int, stop="!") + sgl.gen_string("t") + sgl.gen("b", dtype=bool)

    backend = FakeBackend()
    program.run(backend=backend).sync()
    assert [p.regex for p in backend.params] == [
        r"[-+]?[0-9]+[ \n]*",
        r"\"[\w\d\s]*\"",
        "(True|False)",
    ]
    assert backend.params[0].stop == ["!", " ", "\n", "<|im_end|>"]


def test_a_bad_pattern_fails_where_it_is_written():
    with pytest.raises(re.error, match=r"regex '\(' is not a valid expression"):
        sgl.gen("x", regex="(")
    for known in (r"\p{L}+", r"[\p{Lu}-]x\\p{3}", r"\PN"):
        assert sgl.gen("x", regex=known).sampling["regex"] == known
    with pytest.raises(re.error):
        sgl.gen("x", regex=r"\\\\\p(")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sgl.gen("x", choices=[]), r"a list of strings that are not empty, got \[\]"),
        (lambda: sgl.select("x", "yes"), "got 'yes'"),
        (lambda: sgl.select("x", ["a", ""]), "not empty"),
        (lambda: sgl.select("x", [1, 2]), "strings"),
        (lambda: sgl.select("x", ["a"], choices_method="greedy"), "token_length_normalized, got 'greedy'"),
        (lambda: sgl.gen(64), "must be a string, got 64"),
        (lambda: sgl.gen("x", regex=re.compile("a")), "regex must be a string"),
        (lambda: sgl.gen("x", dtype=int, regex="a"), "got dtype and regex"),
        (lambda: sgl.gen("x", choices=["a"], json_schema={}), "got choices and json_schema"),
    ],
)
def test_arguments_that_cannot_be_meant_fail_where_they_are_written(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_choices_may_come_from_any_iterable():
    @sgl.function
    def program(s):
        s += sgl.select("x", (letter for letter in "ab")) + sgl.gen("y", choices={"k": 1}.keys())

    state = program.run(backend=FakeBackend())
    assert (state["x"], state["y"]) == ("b", "k")


def test_select_and_gen_with_choices():
    @sgl.function
    def program(s):
        s += "a" + sgl.select("x", ["1", "2"]) + sgl.gen("y", choices=["3", "4"])

    state = program.run(backend=FakeBackend())
    assert (state["x"], state["y"]) == ("2", "4")
    assert state.get_meta_info("x")["normalized_prompt_logprobs"] == [0.0, 0.0]

    @sgl.function
    def warm(s):
        s += sgl.select("x", ["1"], temperature=0.7)

    with pytest.raises(ProgramError, match="temperature"):
        warm.run(backend=FakeBackend())["x"]


def test_reasoning_is_split_off():
    @sgl.function
    def program(s):
        s += "q: " + sgl.separate_reasoning(sgl.gen("x"), model_type="qwen3")
        s += "!"

    state = program.run(backend=FakeBackend(lambda *_: "<think>hm</think>\n\nyes"))
    assert state["x"] == "yes"
    assert state["x_reasoning_content"] == "hm"
    assert state.text() == "q: yes!"


def test_images_travel_as_urls(tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")

    @sgl.function
    def program(s):
        s += sgl.user(sgl.image(str(tmp_path / "a.png")) + "What?")
        s += sgl.assistant(sgl.gen("x"))

    backend = FakeBackend()
    state = program.run(backend=backend)
    assert state.messages()[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
        {"type": "text", "text": "What?"},
    ]
    assert backend.calls[0].images == ["data:image/png;base64,cG5n"]

    @sgl.function
    def missing(s):
        s += sgl.image("/nowhere.png")

    with pytest.raises(ProgramError, match="nowhere"):
        missing.run(backend=FakeBackend()).text()


# ---- batches ----


def test_items_are_dicts_or_positional():
    states = ask.run_batch([{"q": "x"}, ["y"], ("z", "long")], backend=FakeBackend())
    assert [state.text() for state in states] == ["short x[x]", "short y[y]", "long z[z]"]
    assert ask.run_batch([], backend=FakeBackend()) == []
    for wrong in ([{"p": 1}], [("a", "b", "c")], [{}], ["text"]):
        with pytest.raises(ConfigError, match="item"):
            ask.run_batch(wrong, backend=FakeBackend())


def test_one_failure_does_not_lose_the_others(capsys):
    states = ask.run_batch(
        [{"q": "x"}, {"q": "bad"}, {"q": "z"}], backend=FakeBackend(failing("bad")), progress_bar=True
    )
    assert [state.error() is None for state in states] == [True, False, True]
    assert states[2]["a"] == "[z]"
    with pytest.raises(ProgramError, match="does not like"):
        states[1]["a"]
    assert "3/3" in capsys.readouterr().err


def test_a_function_that_raises_does_not_lose_the_others():
    @sgl.function
    def program(s, x):
        s += sgl.gen("a") + str(1 / x)

    states = program.run_batch([{"x": 1}, {"x": 0}], backend=FakeBackend())
    assert states[0].text() == "[]1.0"
    error = states[1].error()
    assert isinstance(error, ProgramError)
    assert "ZeroDivisionError" in str(error)
    assert "test_programs.py:" in error.where


def test_a_generator_yields_in_order_and_runs_ahead():
    backend = FakeBackend()
    states = ask.run_batch([{"q": str(i)} for i in range(450)], backend=backend, generator_style=True)
    assert next(states).text() == "short 0[0]"
    assert len(backend.calls) <= 202 + 1
    assert [state["a"] for state in states] == [f"[{i}]" for i in range(1, 450)]


def test_a_generator_that_is_closed_gives_the_rest_up():
    backend = FakeBackend()
    states = ask.run_batch([{"q": str(i)} for i in range(400)], backend=backend, generator_style=True)
    next(states)
    backend.hang = True
    states.close()
    until(lambda: backend.active == 0)
    assert len(backend.calls) < 400


def test_the_common_beginning_is_computed_once():
    @sgl.function
    def program(s, context, q):
        s += sgl.system("x" * 100)
        s += sgl.user(context + q)
        s += sgl.assistant(sgl.gen("a"))

    backend = FakeBackend()
    program.run_batch([{"context": "same", "q": str(i)} for i in range(3)], backend=backend)
    head = "<|im_start|>system\n" + "x" * 100 + "<|im_end|>\n<|im_start|>user\nsame"
    assert backend.prefixes == [head]
    assert backend.log[:2] == ["prefix", "cached"]
    global_config.enable_precache_with_tracing = False
    try:
        program.run_batch([{"context": "same", "q": str(i)} for i in range(3)], backend=backend)
    finally:
        global_config.enable_precache_with_tracing = True
    assert backend.prefixes == [head]
    program.cache(backend=backend)
    assert backend.prefixes[1] == head.removesuffix("same")


def test_our_own_progress_line():
    import io

    from radixlang.lang.progress import Line

    out = io.StringIO()
    bar = Line(2, out)
    bar.update()
    bar.update()
    bar.close()
    assert [part.split()[1] for part in out.getvalue().strip().split("\r") if part] == ["0/2", "1/2", "2/2"]


# ---- turns made in one call ----


def test_turns_are_collected_for_chat_models():
    @sgl.function(num_api_spec_tokens=8)
    def program(s):
        s += sgl.user("q")
        s += sgl.assistant("Name:" + sgl.gen("a", stop="\n") + "\nAge:" + sgl.gen("b", stop="\n"))
        s += sgl.user("r")
        s += sgl.assistant_begin() + "X " + sgl.gen("c")
        assert s["c"] == "[X]"  # reading it makes the turn so far
        s += sgl.assistant_end()

    class Turns(FakeBackend):
        turns = 0

        async def assistant_turn(self, prompt, parts):
            self.turns += 1
            return await super().assistant_turn(prompt, parts)

    backend = Turns(capabilities=Capabilities(completion=False))
    state = program.run(backend=backend)
    assert (state["a"], state["b"]) == ("[Name:]", "[Age:]")
    assert backend.turns == 2
    assert state.messages()[1]["content"] == "Name:[Name:]\nAge:[Age:]"
