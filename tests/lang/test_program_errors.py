"""How programs are checked and traced before they run, and where their errors come out."""

from __future__ import annotations

import asyncio
import functools
import gc
import re

import pytest

import radixlang as sgl
from radixlang.errors import BackendError, ConfigError, ProgramError
from tests.lang.fakes import FakeBackend, ask, failing, until

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


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
        assert re.search(r"test_program_errors\.py:\d+$", caught.value.where)
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
    assert "test_program_errors.py" in error.where


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
