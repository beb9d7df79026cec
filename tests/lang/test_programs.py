"""What programs mean, on a backend without a model: order, concurrency, forks, errors, streams, cancellation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import re
import subprocess
import sys
import threading
import time

import pytest

import radixlang as sgl
from radixlang.errors import BackendError, ConfigError, ProgramError
from radixlang.lang.backends.base import Capabilities
from radixlang.lang.global_config import global_config
from radixlang.lang.loop import get_loop
from tests.lang.fakes import FakeBackend, failing

get_loop()  # the one thread that stays


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = {thread.ident for thread in threading.enumerate()}
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [thread for thread in threading.enumerate() if thread.ident not in before]
        if not left:
            return
        time.sleep(0.01)
    raise AssertionError(f"threads are left: {left}")


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


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


# ---- concurrency ----


def test_branches_run_beside_each_other():
    @sgl.function
    def program(s):
        s += "x"
        forks = s.fork(3)
        forks += lambda i: f" {i}" + sgl.gen("y")
        forks.join()

    backend = FakeBackend(together=3)
    state = program.run(backend=backend)
    assert state["y"] == ["[0]", "[1]", "[2]"]
    assert backend.most == 3


def test_programs_overlap_because_reading_is_lazy():
    @sgl.function
    def program(s, i):
        s += f"{i}" + sgl.gen("y")

    backend = FakeBackend(together=3)
    states = [program.run(i, backend=backend) for i in range(3)]
    assert [state["y"] for state in states] == ["[0]", "[1]", "[2]"]


def test_what_depends_comes_after():
    @sgl.function
    def program(s):
        first = s.fork(2)
        first += ["a" + sgl.gen("x"), "b" + sgl.gen("x")]
        s += first[0]["x"] + first[1]["x"] + sgl.gen("z")

    backend = FakeBackend(together=2)
    assert program.run(backend=backend)["z"] == "[[a][b]]"
    assert [call.text for call in backend.calls][2] == "[a][b]"


def test_a_fork_does_not_wait_for_the_text_before_it():
    @sgl.function
    def program(s):
        s += "a" + sgl.gen("x")
        forks = s.fork(2)
        forks += " b" + sgl.gen("y")
        forks.join("concate_and_append")
        s += "!"

    state = program.run(backend=FakeBackend())
    assert state.text() == "a[a] b[b] b[b]!"


def test_a_shared_prefix_is_computed_once_before_the_branches():
    @sgl.function
    def program(s, words):
        s += "word " * words
        forks = s.fork(4)
        forks += sgl.gen("y")
        forks.join()

    backend = FakeBackend()
    program.run(50, backend=backend).sync()
    assert backend.log == ["prefix", "cached", *["call"] * 4]
    assert backend.prefixes == ["word " * 50]
    short = FakeBackend()
    program.run(3, backend=short).sync()
    assert short.prefixes == []


def test_a_prefix_that_a_call_has_just_computed_is_not_announced():
    @sgl.function
    def program(s):
        s += "word " * 50 + sgl.gen("x")
        s.fork(2).join()
        forks = s.fork(2)
        forks += "go" + sgl.gen("y")
        forks.join()

    backend = FakeBackend()
    program.run(backend=backend).sync()
    assert backend.prefixes == []


def test_copy_is_a_branch_of_its_own():
    @sgl.function
    def program(s):
        s += "a"
        with s.copy() as c:
            c += "b" + sgl.gen("x")
        s += "c"

    state = program.run(backend=FakeBackend())
    assert state.text() == "ac"
    assert state["x"] == ["[ab]"]


def test_forks_of_forks():
    @sgl.function
    def program(s):
        s += "r "
        outer = s.fork(2)
        for i, branch in enumerate(outer):
            branch += f"{i} "
            inner = branch.fork(2)
            inner += lambda k: f"{k}" + sgl.gen("x")
            inner.join()
        outer.join()

    assert program.run(backend=FakeBackend())["x"] == [["[0]", "[1]"]] * 2


def test_sixty_four_programs_at_once():
    @sgl.function
    def program(s, i):
        s += f"{i}" + sgl.gen("y")
        s += s["y"].upper() + sgl.gen("z")

    backend = FakeBackend(together=64)
    states = program.run_batch([{"i": i} for i in range(64)], backend=backend, num_threads=64)
    assert [state["y"] for state in states] == [f"[{i}]" for i in range(64)]
    assert backend.most == 64


# ---- batches ----


@sgl.function
def ask(s, q, style="short"):
    s += f"{style} {q}" + sgl.gen("a")


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


# ---- bind, trace ----


def test_bind_keeps_everything():
    bound = sgl.function(num_api_spec_tokens=7)(ask.func).bind(style="long")
    assert bound.num_api_spec_tokens == 7
    assert bound.run("x", backend=FakeBackend()).text() == "long x[x]"
    assert ask(q="x", backend=FakeBackend()).text() == "short x[x]"
    with pytest.raises(ConfigError, match="no argument"):
        ask.bind(colour=1)


def test_what_is_no_program_is_refused():
    with pytest.raises(ConfigError, match="named s"):
        sgl.function(lambda state: None)
    with pytest.raises(ConfigError, match=r"function, not functools\.partial"):
        sgl.function(functools.partial(ask.func, q="x"))

    def yielding(s):
        yield s

    with pytest.raises(ConfigError, match="yielding must not yield"):
        sgl.function(yielding)


@pytest.mark.parametrize("stream", [False, True])
def test_wrong_arguments_are_found_before_anything_runs(stream):
    def run(*args, **kwargs):
        ask.run(*args, **kwargs, stream=stream, backend=FakeBackend())

    with pytest.raises(TypeError, match=r"Program ask: .*'max_tokens'; did you mean max_new_tokens\?"):
        run("x", max_tokens=3)
    with pytest.raises(TypeError, match="missing a required argument: 'q'"):
        run()
    with pytest.raises(TypeError, match="too many"):
        run(1, 2, 3)
    with pytest.raises(TypeError, match=r"begins a state of its own; .* ask\.func\(s"):
        run(ask.run("x", backend=FakeBackend()), "y")
    with pytest.raises(ValueError, match="stop must be a list, got 5"):
        run("x", stop=5)
    with pytest.raises(ConfigError, match=r"num_threads must be 'auto' or .* got 0"):
        ask.run_batch([{"q": "x"}], num_threads=0, backend=FakeBackend())
    with pytest.raises(TypeError, match="'tempature'; did you mean temperature"):
        asyncio.run(ask.run_async("x", tempature=0, backend=FakeBackend()))


def test_a_trace_shows_the_program():
    @sgl.function
    def inner(s, x):
        s += f"inner {x}"

    @sgl.function
    def program(s, q, k=2):
        s += "hi " + q
        s += sgl.gen("a", max_tokens=3)
        s += f"<{s['a']}>"
        forks = s.fork(2)
        forks += sgl.select("b", ["x", "y"])
        inner(s["a"])

    graph = str(program.trace(k=3))
    for line in (
        "argument q",
        "gen a(max_new_tokens=3)",
        "text '<{a}>'",
        "branch 1 of 2",
        "select b",
        "inner {a}",
    ):
        assert line in graph
    assert "depends on" not in graph


def until_done(s, x):
    while s["a"] != "done":
        s += sgl.gen("a")


def each_of(s, x):
    for part in x:
        s += part


def if_known(s, x):
    s += "yes" if x else "no"


@pytest.mark.parametrize("question", [until_done, each_of, if_known])
def test_a_trace_ends_at_a_question_that_nobody_can_answer(question):
    @sgl.function
    def program(s, x):
        with sgl.user():
            s += "begin"
        question(s, x)

    lines = str(program.trace()).splitlines()
    assert lines == [
        "program",
        "  begin user",
        "  text 'begin'",
        "  end user",
        "  … depends on values that are known only when it runs",
    ]


def test_nothing_is_called_while_a_program_is_traced():
    @sgl.function
    def outer(s, x):
        s += "o" * 80
        s += ask.run("fixed", temperature=0)["a"] + x

    inner = FakeBackend()
    sgl.set_default_backend(inner)
    try:
        backend = FakeBackend()
        assert "short " in str(outer.trace())
        outer.run_batch([{"x": "1"}, {"x": "2"}], backend=backend)
        assert backend.prefixes == ["o" * 80]
        assert len(inner.calls) == 2
    finally:
        sgl.set_default_backend(None)


# ---- errors ----


def test_an_error_is_raised_where_the_value_is_read():
    @sgl.function
    def program(s):
        s += "fine" + sgl.gen("a")
        s += "bad" + sgl.gen("b")
        s += sgl.gen("c")

    state = program.run(backend=FakeBackend(failing("bad")))
    assert state["a"] == "[fine]"
    for name in "bc":
        with pytest.raises(ProgramError, match="does not like 'bad'") as caught:
            state[name]
        assert re.search(r"test_programs\.py:\d+$", caught.value.where)
        assert isinstance(caught.value.__cause__, BackendError)
    with pytest.raises(ProgramError):
        state.text()
    with pytest.raises(ProgramError):
        state.sync()
    assert isinstance(state.error(), ProgramError)


def test_the_line_of_a_turn_in_a_block_is_the_program_s():
    @sgl.function
    def program(s):
        with s.user(), s.assistant():
            pass

    error = program.run(backend=FakeBackend()).error()
    assert error is not None
    assert "test_programs.py" in error.where


def test_the_function_s_own_exception_comes_out_of_run():
    @sgl.function
    def program(s):
        s += sgl.gen("a")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        program.run(backend=FakeBackend())


def test_a_failed_branch_fails_the_join_and_not_its_siblings():
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += ["good" + sgl.gen("x"), "bad" + sgl.gen("x")]
        s["forks"] = forks
        forks.join()
        s += "after" + sgl.gen("y")

    state = program.run(backend=FakeBackend(failing("bad")))
    assert state["forks"][0]["x"] == "[good]"
    for name in "xy":
        with pytest.raises(ProgramError, match="does not like"):
            state[name]


def test_an_error_nobody_read_is_logged(caplog):
    state = ask.run("bad", backend=FakeBackend(failing("bad")))
    program = state._branch.program
    until(lambda: program.ended)
    del state
    gc.collect()
    assert "nobody read" in caplog.text


def test_no_backend_is_a_sentence():
    with pytest.raises(ConfigError, match="set_default_backend"):
        ask.run("x")
    with pytest.raises(ConfigError, match="not int"):
        ask.run("x", backend=3)
    assert sgl.flush_cache() is False
    assert sgl.get_server_info() is False
    assert sgl.flush_cache(FakeBackend()) is True
    assert sgl.get_server_info(FakeBackend()) == {"fake": True}


def test_what_is_no_text_is_refused_at_once():
    @sgl.function
    def program(s):
        s += 3

    with pytest.raises(TypeError, match="int: 3"):
        program.run(backend=FakeBackend())


# ---- streams ----


def test_a_stream_of_the_whole_text_and_of_a_variable():
    state = ask.run("abc", backend=FakeBackend(), stream=True)
    assert "".join(state.text_iter()) == "short abc[abc]"
    state = ask.run("abc", backend=FakeBackend(), stream=True)
    pieces = list(state.text_iter("a"))
    assert len(pieces) > 1
    assert "".join(pieces) == "[abc]"
    assert state["a"] == "[abc]"
    with pytest.raises(KeyError):
        list(state.text_iter("none"))
    done = ask.run("abc", backend=FakeBackend())
    assert "".join(done.text_iter()) == "short abc[abc]"
    assert list(done.text_iter("a")) == ["[abc]"]


def test_an_async_stream():
    async def main():
        state = ask.run("abc", backend=FakeBackend(), stream=True)
        pieces = [pair async for pair in state.text_async_iter("a", return_meta_data=True)]
        state = ask.run("abc", backend=FakeBackend(), stream=True)
        return pieces, "".join([piece async for piece in state.text_async_iter()])

    pieces, text = asyncio.run(main())
    assert len(pieces) > 1
    assert pieces[-1][1] == {"n": 5}
    assert "".join(text for text, _ in pieces) == "[abc]"
    assert text == "short abc[abc]"


def test_an_error_ends_a_stream():
    state = ask.run("bad", backend=FakeBackend(failing("bad")), stream=True)
    with pytest.raises(ProgramError):
        list(state.text_iter())

    @sgl.function
    def program(s):
        s += "x"
        raise ValueError("mine")

    state = program.run(backend=FakeBackend(), stream=True)
    with pytest.raises(ProgramError, match=r"ValueError: mine \(in .*test_programs"):
        list(state.text_iter())
    with pytest.raises(ProgramError, match="mine"):
        state["never"]


def test_values_that_are_no_text_are_streamed_one_by_one():
    @sgl.function
    def program(s):
        forks = s.fork(2)
        for index, branch in enumerate(forks):
            branch["w"] = index
        forks.join()
        s += "x" + sgl.gen("n", n=2)

    async def pairs(state):
        return [pair async for pair in state.text_async_iter("n", return_meta_data=True)]

    state = program.run(backend=FakeBackend(), stream=True)
    assert list(state.text_iter("w")) == ["0", "1"]
    assert list(state.text_iter("n")) == ["[x]", "[x]"]
    assert asyncio.run(pairs(state)) == list(zip(state["n"], state.get_meta_info("n"), strict=True))
    with pytest.raises(TypeError, match="not iterable"):
        list(state)


@pytest.mark.parametrize("way", ["stream", "run_async"])
def test_a_function_may_read_its_branches_in_threads_of_its_own(way):
    @sgl.function
    def program(s):
        forks = s.fork(2)

        def work(index):
            forks[index] += f"{index}" + sgl.gen("x")
            return forks[index].text()

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(work, range(2)))

    async def main():
        return await asyncio.wait_for(program.run_async(backend=FakeBackend()), 5)

    state = program.run(backend=FakeBackend(), stream=True) if way == "stream" else asyncio.run(main())
    assert list(state.text_iter()) == []
    assert state.ret_value == ["0[0]", "1[1]"]


def test_a_variable_can_be_awaited_before_the_function_has_come_to_it():
    go = threading.Event()

    @sgl.function
    def program(s):
        go.wait(5)
        s += "x" + sgl.gen("late")

    state = program.run(backend=FakeBackend(), stream=True)
    threading.Timer(0.05, go.set).start()
    assert state["late"] == "[x]"


# ---- cancellation ----


def hanging(stream=False):
    backend = FakeBackend()
    backend.hang = True
    state = ask.run("x", backend=backend, stream=stream)
    until(lambda: backend.active == 1)
    return backend, state


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_aborts_the_request(stream):
    backend, state = hanging(stream)
    state.cancel()
    with pytest.raises(ProgramError, match="cancelled"):
        state["a"]
    until(lambda: backend.aborted == 1)
    until(lambda: backend.ended == backend.began)


def test_backends_hear_of_the_end_of_the_process():
    script = """
import asyncio
import radixlang as sgl
from tests.lang.fakes import FakeBackend

class Telling(FakeBackend):
    async def end(self, program):
        await asyncio.sleep(0.05)
        print("ended", program in self.began, self.aborted)

done, hanging = Telling(), Telling()
hanging.hang = True
program = sgl.function(lambda s: s.__iadd__("x" + sgl.gen("x")) and None)
program.run(backend=done)["x"]
states = [program.run(backend=hanging), program.run(backend=hanging, stream=True)]
while len(hanging.calls) < 2:
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["ended True 0", "ended True 2", "ended True 2"]
    assert done.stderr == ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_forgotten_program_is_given_up(stream):
    backend, state = hanging(stream)
    del state
    gc.collect()
    until(lambda: backend.aborted == 1)


def test_closing_a_stream_gives_the_program_up():
    backend, state = hanging(stream=True)
    pieces = state.text_iter()
    next(pieces)
    pieces.close()
    until(lambda: backend.aborted == 1)


def test_a_cancelled_async_reader_gives_the_program_up():
    backend, state = hanging(stream=True)

    async def read():
        async for _ in state.text_async_iter():
            pass

    async def main():
        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    until(lambda: backend.aborted == 1)


def test_a_cancelled_run_async_gives_the_program_up_although_its_error_is_held():
    backend = FakeBackend()
    backend.hang = True

    async def main():
        work = asyncio.ensure_future(ask.run_async("x", backend=backend))
        while not backend.calls:
            await asyncio.sleep(0.005)
        work.cancel()
        await asyncio.wait([work])
        return work

    held = asyncio.run(main())
    until(lambda: backend.aborted == 1)
    assert held.cancelled()


def test_a_thread_that_waits_is_freed_by_cancel():
    backend = FakeBackend()
    backend.hang = True

    @sgl.function
    def program(s):
        s += sgl.gen("a")
        s["result"] = s["a"]

    state = program.run(backend=backend, stream=True)
    until(lambda: backend.active == 1)
    state.cancel()
    with pytest.raises(ProgramError):
        state["result"]


def test_a_cancelled_function_cannot_hang_on_a_new_fork():
    go = threading.Event()
    outcome = []

    @sgl.function
    def program(s):
        s += "x"
        go.wait(5)
        try:
            forks = s.fork(2)
            forks += sgl.gen("a")
            forks.join()
            outcome.append(s["a"])
        except ProgramError as error:
            outcome.append(error)

    state = program.run(backend=FakeBackend(), stream=True)
    state.cancel()
    with pytest.raises(ProgramError):
        state.sync()
    go.set()
    until(lambda: outcome)
    assert isinstance(outcome[0], ProgramError)


# ---- async programs ----


def test_async_programs():
    @sgl.function
    async def program(s, word):
        s += word + sgl.gen("a")
        s += (await s.get_var_async("a")) + sgl.gen("b")
        await s.sync_async()
        return await s.text_async()

    async def main():
        backend = FakeBackend(together=2)
        states = await asyncio.gather(*(program.run_async(word, backend=backend) for word in ("x", "y")))
        plain = await ask.run_async("z", backend=FakeBackend(), temperature=0)
        return [state.ret_value for state in states], plain["a"]

    assert asyncio.run(main()) == (["x[x][x][x[x][x]]", "y[y][y][y[y][y]]"], "[z]")
    assert program.run("x", backend=FakeBackend()).ret_value == "x[x][x][x[x][x]]"


def test_an_async_program_must_not_block_the_loop():
    @sgl.function
    async def program(s):
        s += sgl.gen("a")
        s["a"]

    with pytest.raises(RuntimeError, match="await"):
        program.run(backend=FakeBackend())


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
