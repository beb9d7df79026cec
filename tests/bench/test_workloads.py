"""The classical workloads: seeded, consistent, and of the shapes that their names promise."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from radixlang.bench.play import Asked, Figures, Ideal, Play
from radixlang.bench.workloads import WORKLOADS, Maker, Request, Session, Text, content, names_of, read_trace
from radixlang.errors import ConfigError

VOCAB = 5000


def play_out(
    play: Play, seconds: float = 1.0, page_size: int = 16
) -> tuple[list[Asked], dict[int, np.ndarray], Ideal]:
    """Answer everything with noise, each request `seconds` after it is due, earliest end first."""
    ideal, prompts, answered, now = Ideal(page_size), {}, [], 0.0
    running: list[tuple[float, Asked]] = []
    while not play.done:
        due = play.next_time
        if running and (due is None or min(r[0] for r in running) <= due):
            now, asked = min(running, key=lambda pair: (pair[0], pair[1].id))
            running.remove((now, asked))
            asked.first = asked.ended = now
            answer = np.random.default_rng(asked.id).integers(0, VOCAB, asked.output).astype(np.int32)
            ideal.said(prompts[asked.id], answer)
            play.answered(asked, answer)
            answered.append(asked)
            continue
        assert due is not None
        for asked in play.due(due):
            prompts[asked.id] = asked.prompt(VOCAB)
            asked.possible_tokens = ideal.sent(prompts[asked.id])
            running.append((asked.due + seconds, asked))
    return answered, prompts, ideal


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_says_it_all(name: str) -> None:
    first, again = (list(islice(WORKLOADS[name](Maker(3, 0.1, rate=2.0)), 6)) for _ in range(2))
    other = list(islice(WORKLOADS[name](Maker(4, 0.1, rate=2.0)), 6))
    assert first == again
    assert first != other
    starts = [session.start for session in first]
    assert starts == sorted(starts)
    assert starts[0] > 0
    for session in first:
        for index, request in enumerate(session.requests):
            used = {piece for piece in request.prompt if isinstance(piece, int)}
            assert all(before < index for before in (*used, *request.after)), "an answer that is not there yet"
            assert request.output >= 1
            assert all(piece.length >= 1 for piece in request.prompt if isinstance(piece, Text))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("chat", 0.85, 0.95),
        ("few-shot", 0.90, 0.97),
        ("rag", 0.60, 0.90),
        ("agent", 0.84, 0.94),
        ("tree-of-thought", 0.93, 0.99),
        ("self-consistency", 0.94, 0.99),
        ("long-document", 0.75, 0.88),
    ],
)
def test_best_possible_hit_rates(name: str, low: float, high: float) -> None:
    sessions = 200 if name in ("few-shot", "rag") else 12
    answered, _, ideal = play_out(Play(islice(WORKLOADS[name](Maker(0, 0.5, think=0)), sessions), 4))
    best = Figures.of(answered).best
    assert best is not None
    assert low < best < high
    assert ideal.pages * 16 < sum(asked.prompt_tokens + asked.output for asked in answered)


def test_a_prompt_goes_on_from_the_answer() -> None:
    session = next(WORKLOADS["chat"](Maker(0, 0.2, think=1.0)))
    answered, prompts, _ = play_out(Play(iter([session])))
    first, second = prompts[0], prompts[1]
    said = np.random.default_rng(0).integers(0, VOCAB, answered[0].output)
    assert np.array_equal(second[: len(first)], first)
    assert np.array_equal(second[len(first) : len(first) + len(said)], said)
    assert answered[1].due == pytest.approx(answered[0].ended + session.requests[1].delay)


def test_requests_wait_for_all_that_they_follow() -> None:
    session = next(WORKLOADS["tree-of-thought"](Maker(1, 0.1)))
    answered, _, _ = play_out(Play(iter([session])))
    assert len(answered) == len(session.requests) == 3 * 2 + 2 * 2 * 3 * 2
    ends = {asked.id: asked.ended for asked in answered}
    # A level: thoughts of one second and ratings of one second, three levels.
    assert max(ends.values()) == pytest.approx(6.0)


def test_concurrency_holds_sessions_back() -> None:
    text = (Text(1, 4),)
    sessions = [Session(0.0, (Request(text, 1),)) for _ in range(5)]
    answered, _, _ = play_out(Play(iter(sessions), 2))
    assert [asked.due for asked in answered] == [0.0, 0.0, 1.0, 1.0, 2.0]
    answered, _, _ = play_out(Play(iter(sessions)))
    assert [asked.due for asked in answered] == [0.0] * 5
    # A session that starts later than its turn comes is not early.
    answered, _, _ = play_out(Play(iter([sessions[0], Session(7.0, sessions[0].requests)]), 1))
    assert [asked.due for asked in answered] == [0.0, 7.0]


def test_ideal_knows_pages() -> None:
    ideal = Ideal(4)
    prompt = np.arange(10, dtype=np.int32)
    assert ideal.sent(prompt) == 0
    assert ideal.sent(prompt) == 9  # the last token is always computed
    assert ideal.sent(np.array([*prompt[:9], 7, 7], np.int32)) == 8  # less than half a page more
    ideal.said(prompt, np.array([50, 51, 52], np.int32))
    assert ideal.sent(np.array([*prompt, 50, 51, 52, 9], np.int32)) == 12
    assert ideal.sent(np.array([*prompt, 50, 60, 61], np.int32)) == 8 + 3
    assert ideal.pages == 3 + 1


def test_texts_are_endless_and_different() -> None:
    whole = content([Text(7, 100)], VOCAB)
    assert np.array_equal(content([Text(7, 40), Text(7, 60, 40)], VOCAB), whole)
    assert whole.dtype == np.int32
    assert whole.min() >= 0
    assert whole.max() < VOCAB
    assert len(set(content([Text(k, 8) for k in range(1000)], VOCAB).reshape(1000, 8)[:, 0].tolist())) > 880
    assert len(content([], VOCAB)) == 0


def test_names() -> None:
    assert names_of("all") == tuple(WORKLOADS)
    assert names_of("rag,chat") == ("rag", "chat")
    with pytest.raises(ConfigError, match="'x' is not known; known are: chat"):
        names_of("rag,x")


def test_a_trace_file(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 2500, "input_length": 1030, "output_length": 0, "hash_ids": [1, 2, 9]},
        {"timestamp": 2600, "input_length": 520, "output_length": 2, "hash_ids": [1]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    sessions = list(read_trace(file))
    assert [session.start for session in sessions] == [0.0, 2.5, 2.6]
    prompts = [session.requests[0].prompt for session in sessions]
    assert [sum(piece.length for piece in prompt) for prompt in prompts] == [1100, 1030, 520]
    assert prompts[0][:2] == prompts[1][:2]
    assert prompts[0][2] != prompts[1][2]
    assert [session.requests[0].output for session in sessions] == [5, 1, 2]
    file.write_text("\n".join(map(json.dumps, reversed(lines))))
    with pytest.raises(ConfigError, match="line 2: its timestamp is before"):
        list(read_trace(file))
    file.write_text("\n" + json.dumps(lines[0]) + "\n\n" + json.dumps(lines[1]) + "\n\n")
    assert len(list(read_trace(file))) == 2
    for field, value in (
        ("timestamp", float("nan")),
        ("timestamp", float("inf")),
        ("timestamp", -1),
        ("input_length", 0),
        ("input_length", 10**12),
        ("input_length", True),
        ("output_length", -1),
        ("hash_ids", "12"),
        ("hash_ids", [1.5]),
    ):
        file.write_text(json.dumps(lines[0] | {field: value}))
        with pytest.raises(ConfigError, match="line 1: needs timestamp"):
            list(read_trace(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="line 1: needs timestamp"):
        list(read_trace(file))
    file.write_text('{"timestamp": 1}')
    with pytest.raises(ConfigError, match="line 1: needs timestamp"):
        list(read_trace(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_trace(tmp_path / "none"))


def test_nothing_comes_before_its_time() -> None:
    play = Play(islice(WORKLOADS["few-shot"](Maker(0, 0.1, rate=0.5)), 3))
    due = play.next_time
    assert due is not None
    assert play.due(math.nextafter(due, 0)) == []
    assert len(play.due(due)) == 1
    assert not play.done
