"""What runs when, on a backend without a model: branches, streams, cancellation, async programs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import subprocess
import sys
import threading

import pytest

import radixlang as sgl
from radixlang.errors import ProgramError
from tests.lang.fakes import FakeBackend, ask, failing, until

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


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
    with pytest.raises(ProgramError, match=r"ValueError: mine \(in .*test_program_flow"):
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
