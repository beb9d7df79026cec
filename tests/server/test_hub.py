"""The hub by itself, on a bare loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from radixlang.errors import EngineDeadError, EngineError, OverloadedError, RadixLangError, RequestError
from radixlang.messages import Failed, Generate, RequestMeta, Stats, Stopped, Texts, pack_ids
from radixlang.sampling_params import SamplingParams
from radixlang.server.hub import Hub
from radixlang.server.stream import GenerateRequest, Output, namespace_of

from .fakes import EOS, FakeEngine, make_hub


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


def ask(text: str, tokens: int = 20, **fields: Any) -> GenerateRequest:
    return GenerateRequest(text=text, sampling=SamplingParams(max_new_tokens=tokens), **fields)


async def drain(stream: Any) -> list[Output]:
    return [output async for output in stream]


class Silent:
    """An engine that says nothing; the test plays its part."""

    hub: Hub

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def send_all(self, messages: list[Any]) -> None:
        self.sent += messages


def silent_hub(**flags: Any) -> tuple[Hub, Silent]:
    engine = Silent()
    hub, _, _ = make_hub(engine=engine, **flags)  # type: ignore[arg-type]
    return hub, engine


def texts(rids: list[str], words: list[str], ids: list[list[int]], finishes: list[Any] | None = None) -> Texts:
    n = len(rids)
    flat = [token for part in ids for token in part]
    meta: list[RequestMeta | None] = [RequestMeta(3, 0)] * n
    return Texts(
        rids, words, [len(part) for part in ids], pack_ids(flat), finishes or [None] * n, meta, [False] * n
    )


def test_outputs_add_up_to_the_sequence() -> None:
    async def main() -> None:
        hub, _, _ = make_hub()
        outputs = await drain(hub.generate(ask("[say:hello]", rid="r")))
        assert "".join(o.text for o in outputs) == "hello"
        assert [token for o in outputs for token in o.ids] == [*b"hello", EOS]
        assert [o.finish_reason is None for o in outputs] == [True] * (len(outputs) - 1) + [False]
        sequence = outputs[-1].sequence
        assert (sequence.text, sequence.ids, sequence.rid) == ("hello", [*b"hello", EOS], "r")
        assert sequence.meta is not None
        assert hub.running == 0

    run(main())


def test_one_message_serves_many_streams_and_wakes_each_once() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        streams = [hub.generate(ask("x", rid=f"r{i}")) for i in range(3)]
        for stream in streams:
            await stream.open()
        readers = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        hub.dispatch(
            [
                texts(["r2", "gone", "r0"], ["c", "?", "a"], [[3, 33], [9], [1]]),
                texts(["r1", "r0"], ["b", "A"], [[2], [11]]),
            ]
        )
        outputs = await asyncio.gather(*readers)
        assert [(o.text, o.ids) for o in outputs] == [("aA", [1, 11]), ("b", [2]), ("c", [3, 33])]
        for stream in streams:
            await stream.aclose()
        assert [m.rid for m in engine.sent[3:]] == ["r0", "r1", "r2"]
        assert all(m.quiet for m in engine.sent[3:])

    run(main())


def test_a_slow_reader_gets_everything_at_once() -> None:
    async def main() -> None:
        hub, _ = silent_hub()
        stream = await hub.generate(ask("x", rid="r")).open()
        for i in range(5):
            hub.dispatch([texts(["r"], [str(i)], [[i]])])
        hub.dispatch([texts(["r"], ["end"], [[7]], [{"type": "stop", "matched": 7}])])
        outputs = await drain(stream)
        assert [(o.text, o.ids) for o in outputs] == [("01234end", [0, 1, 2, 3, 4, 7])]

    run(main())


def test_collecting_does_not_wake_per_token() -> None:
    async def main() -> None:
        hub, _ = silent_hub()
        stream = hub.generate(ask("x", rid="r"))
        wakes = []
        original = stream.wake
        stream.wake = lambda: (wakes.append(1), original())[1]  # type: ignore[method-assign]
        task = asyncio.ensure_future(stream.collect())
        await asyncio.sleep(0)
        for i in range(50):
            hub.dispatch([texts(["r"], ["x"], [[i]])])
        assert wakes == []
        hub.dispatch([texts(["r"], ["."], [[7]], [{"type": "length", "length": 51}])])
        (sequence,) = await task
        assert sequence.text == "x" * 50 + "."

    run(main())


def test_a_failed_request_ends_once_and_frees_its_batch() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        stream = await hub.generate([ask("x"), ask("y")], rid="b").open()
        hub.dispatch([Failed("b_0", 503, "full")])
        hub.dispatch([Failed("b_0", 503, "again"), texts(["b_0"], ["late"], [[1]])])
        with pytest.raises(OverloadedError, match="full"):
            await drain(stream)
        assert hub.running == 0
        assert [m.rid for m in engine.sent[2:]] == ["b_1"]

    run(main())


def test_a_refusal_comes_before_the_news_of_other_samples() -> None:
    """All of it arrives at once on a busy machine; a response that had begun could only break off."""

    async def main() -> None:
        hub, engine = silent_hub()
        stream = hub.generate([ask("x"), ask("y")], rid="b")
        task = asyncio.ensure_future(stream.peek())
        await asyncio.sleep(0)
        hub.dispatch([Failed("b_1", 503, "full"), texts(["b_0"], ["news"], [[1]])])
        with pytest.raises(OverloadedError, match="full"):
            await task
        assert hub.running == 0
        assert [m.rid for m in engine.sent[2:]] == ["b_0"]

    run(main())


def test_the_engine_is_told_of_a_failure_it_does_not_know() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        stream = await hub.generate(ask("x", rid="r")).open()
        hub.dispatch([Failed("r", 500, "no text", running=True)])
        with pytest.raises(RadixLangError, match="no text"):
            await drain(stream)
        assert [(type(m).__name__, m.rid) for m in engine.sent[1:]] == [("Abort", "r")]

    run(main())


def test_cancelling_a_reader_aborts() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        for method in ("collect", "peek"):
            task = asyncio.ensure_future(getattr(hub.generate(ask("x")), method)())
            await asyncio.sleep(0)
            assert hub.running == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert hub.running == 0
            assert type(engine.sent[-1]).__name__ == "Abort"

    run(main())


def test_late_messages_of_an_old_bearer_do_not_reach_the_new() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        first = await hub.generate(ask("x", rid="same")).open()
        await first.aclose()
        second = await hub.generate(ask("y", rid="same")).open()
        hub.dispatch([texts(["same"], ["old"], [[1]]), Failed("same", 500, "old")])
        wire = engine.sent[-1].rid
        assert wire != "same"
        hub.dispatch([texts([wire], ["new"], [[2]], [{"type": "length", "length": 1}])])
        assert [o.text for o in await drain(second)] == ["new"]
        assert second.sequences[0].rid == "same"

    run(main())


def test_no_client_can_choose_the_id_that_stands_for_another_inside() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        await (await hub.generate(ask("x", rid="a")).open()).aclose()
        chosen = await hub.generate(ask("y", rid="a~1")).open()
        again = await hub.generate(ask("z", rid="a")).open()
        wires = [message.rid for message in engine.sent if isinstance(message, Generate)]
        assert len(set(wires)) == 3
        end = {"type": "length", "length": 1}
        hub.dispatch([texts(wires[1:], ["y", "z"], [[1], [2]], [end, end])])
        assert [o.text for stream in (chosen, again) for o in await drain(stream)] == ["y", "z"]
        # Nor one that stood for another, whose last words may be on their way.
        third = await hub.generate(ask("x", rid="a")).open()
        gone = engine.sent[-1].rid
        await third.aclose()
        await hub.generate(ask("x", rid=gone)).open()
        assert engine.sent[-1].rid != gone

    run(main())


def test_nothing_is_sent_when_one_of_a_batch_is_wrong() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        with pytest.raises(RequestError):
            await hub.generate([ask("fine"), GenerateRequest(input_ids=[10**9])]).open()
        with pytest.raises(RequestError, match="empty"):
            await hub.generate([]).open()
        with pytest.raises(RequestError, match="Unicode"):
            await hub.generate(ask("\ud800")).open()
        assert engine.sent == []
        assert hub.running == 0

    run(main())


def test_values_that_do_not_fit_in_a_message_are_refused() -> None:
    async def main() -> None:
        hub, engine = silent_hub()

        def send_all(messages: list[Any]) -> None:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates")

        hub._send_all = send_all
        with pytest.raises(RequestError, match="passed on"):
            await hub.generate(ask("x", rid="s")).open()
        assert hub.running == 0
        del engine

    run(main())


def test_a_long_batch_is_sent_in_groups_and_given_up_whole() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        groups = []

        def send_all(messages: list[Any]) -> None:
            if any(message.namespace == "wrong" for message in messages):
                raise ValueError("surrogates")
            groups.append([message.rid for message in messages])

        hub._send_all = send_all
        batch = [ask("x") for _ in range(70)]
        await hub.generate(batch, "b").open()
        assert [len(group) for group in groups] == [32, 32, 6]
        assert [rid for group in groups for rid in group] == [f"b_{i}" for i in range(70)]
        groups.clear()
        batch[40].namespace = "wrong"
        with pytest.raises(RequestError, match="passed on"):
            await hub.generate(batch, "c").open()
        assert {message.rid for message in engine.sent} >= set(groups[0])
        assert hub.running == 70

    run(main())


def test_samples_of_a_prompt_share_its_packed_ids() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        sampling = SamplingParams(n=40)  # more than are sent together
        await hub.generate([GenerateRequest(text=text, sampling=sampling) for text in ("x", "yz")]).open()
        packed = [message.input_ids for message in engine.sent]
        assert [len(ids) // 4 for ids in packed] == [2] * 40 + [3] * 40
        assert len({id(ids) for ids in packed}) == 2
        assert [message.sample_index for message in engine.sent] == [*range(40)] * 2

    run(main())


def test_large_texts_are_tokenized_off_the_loop() -> None:
    async def main() -> None:
        hub, _, _ = make_hub(info={"context_length": 100_000, "max_total_num_tokens": 100_000})
        await hub.generate(ask("[say:a]")).collect()
        await hub.generate(ask("[say:b]" + "x" * 50_000)).collect()
        assert hub.tokenizer.threads[0] == "MainThread"
        assert hub.tokenizer.threads[1].startswith("tokenizer")

    run(main())


def test_control() -> None:
    async def main() -> None:
        hub, engine, _ = make_hub()
        assert await hub.control("flush_cache") is True
        both = await asyncio.gather(hub.control("server_info"), hub.control("flush_cache"))
        assert both == [{"running": 0}, True]
        with pytest.raises(EngineError, match="no_such"):
            await hub.control("no_such")
        assert hub._replies == {}
        del engine

    run(main())


def test_death_fails_everything_and_stays() -> None:
    async def main() -> None:
        hub, _ = silent_hub()
        stream = await hub.generate([ask("x"), ask("y")]).open()
        control = asyncio.ensure_future(hub.control("server_info"))
        reader = asyncio.ensure_future(drain(stream))
        await asyncio.sleep(0)
        hub.fail_all(EngineDeadError("gone"))
        for task in (control, reader):
            with pytest.raises(EngineDeadError, match="gone"):
                await task
        with pytest.raises(EngineDeadError):
            await hub.generate(ask("x")).open()
        with pytest.raises(EngineDeadError):
            await hub.control("flush_cache")
        assert not hub.healthy
        assert hub.running == 0
        assert await hub.probe(0.1) is False

    run(main())


def test_nobody_waits_for_the_answer_of_an_engine_that_has_stopped() -> None:
    async def main() -> None:
        hub, _ = silent_hub()
        asked = asyncio.ensure_future(hub.control("server_info"))
        await asyncio.sleep(0)
        hub.dispatch([Stopped()])
        for control in (asked, hub.control("server_info")):
            with pytest.raises(EngineDeadError, match="stopped"):
                await asyncio.wait_for(control, 1)

    run(main())


def test_probe() -> None:
    async def main() -> None:
        hub, engine, _ = make_hub()
        assert await hub.probe(1.0) is True
        full, _, _ = make_hub(engine=FakeEngine(max_running=0))
        assert await full.probe(1.0) is True  # a refusal is a sign of life
        quiet, sent = silent_hub()
        began = time.monotonic()
        assert await quiet.probe(0.1) is False
        assert time.monotonic() - began < 10
        assert quiet.running == 0
        assert sent.sent[-1].quiet
        # Anything the engine says while the probe waits in its queue will do.
        waiting = asyncio.ensure_future(quiet.probe(5.0))
        await asyncio.sleep(0)
        quiet.dispatch([Stats({}, {})])
        assert await asyncio.wait_for(waiting, 1) is True
        quiet.draining = True
        assert await quiet.probe(0.1) is False
        del engine

    run(main())


def test_abort_finds_members_of_groups_only_by_exact_names() -> None:
    async def main() -> None:
        hub, engine = silent_hub()
        many = GenerateRequest(text="x", sampling=SamplingParams(max_new_tokens=5, n=2), rid="1")
        streams = [
            hub.generate(many),
            hub.generate(ask("y", rid="10")),
            hub.generate([ask("z"), ask("w")], rid="b"),
        ]
        for stream in streams:
            await stream.open()
        engine.sent.clear()
        assert hub.abort("1") == 2
        assert [m.rid for m in engine.sent] == ["1_0", "1_1"]
        assert hub.abort("b_1") == 1
        assert hub.abort("b") == 2
        assert hub.abort("nobody") == hub.abort("") == hub.abort(None) == 0
        assert hub.abort(every=True) == 5
        assert not any(m.quiet for m in engine.sent)

    run(main())


def test_every_request_ends_exactly_once_under_disorder() -> None:
    """Random readers, cancellations, aborts and failures: nothing stays behind."""
    import random

    async def main() -> None:
        rng = random.Random(5)
        hub, engine, _ = make_hub()
        ends = {"done": 0, "error": 0, "left": 0}

        async def client(i: int) -> None:
            text = rng.choice(["[say:abc]", "plain", "[mid]", "[fail:500]", "[eos:4]"])
            request = GenerateRequest(
                text=text, sampling=SamplingParams(max_new_tokens=30, n=rng.choice([1, 3])), rid=f"c{i % 40}~{i}"
            )
            stream = hub.generate(request)
            try:
                if rng.random() < 0.5:
                    await stream.collect()
                else:
                    async for _ in stream:
                        if rng.random() < 0.05:
                            await stream.aclose()
                            ends["left"] += 1
                            return
                        if rng.random() < 0.05:
                            hub.abort(request.rid)
                ends["done"] += 1
            except RadixLangError:
                ends["error"] += 1

        tasks = [asyncio.ensure_future(client(i)) for i in range(300)]
        await asyncio.sleep(0.005)
        for task in tasks[::9]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(ends.values())
        assert hub.running == 0
        assert hub._by_rid == {}
        await asyncio.sleep(0.01)
        assert not engine.running

    run(main())


def test_namespaces() -> None:
    names = [namespace_of(*pair) for pair in [("a", "b"), ("ab", ""), ("", "ab"), ("a", "1:b"), (None, None)]]
    assert len(set(names)) == 5
    assert names[-1] == ""


def test_import_is_light() -> None:
    """What makes a start slow is not imported: the server is ready before its engine is."""
    code = "import radixlang.server.app, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "httpx", "prometheus_client", "tokenizers"} & set(done.stdout.split())
