"""The detokenizer's stage: whatever becomes of one request's text, the others get theirs."""

from __future__ import annotations

from typing import Any

import pytest

from radixlang.channel import LocalChannel
from radixlang.messages import Failed, Opened, Stopped, Texts, Tokens, pack_ids
from radixlang.sampling_params import SamplingParams
from radixlang.text.detokenize_worker import DetokenizerState
from radixlang.text.worker import DetokenizerLoop
from tests.text import toy

LENGTH = {"type": "length", "length": 1}


def said(messages: list[Any]) -> list[Any]:
    """What a detokenizer sends when it is told these."""
    inbox, outbox = LocalChannel(), LocalChannel()
    loop = DetokenizerLoop(toy.byte_level(), inbox, outbox)
    inbox.send_all([*messages, Stopped()])
    loop.run()
    assert loop._state is not None
    assert len(loop._state) == 0
    return outbox.receive(0)[:-1]


def opened(rid: str, **sampling: Any) -> Opened:
    return Opened(rid, pack_ids([]), SamplingParams(**sampling))


def step(rids: str, ids: bytes, finish: dict[str, Any] | None) -> Tokens:
    n = len(rids)
    return Tokens(list(rids), [1] * n, pack_ids(list(ids)), [finish] * n, [None] * n)


@pytest.mark.parametrize("finish", [None, LENGTH])
def test_a_text_that_cannot_be_made_fails_alone(monkeypatch: pytest.MonkeyPatch, finish: Any) -> None:
    push = DetokenizerState.push

    def fragile(self: DetokenizerState, rid: str, *args: Any) -> Any:
        if rid == "b":
            raise ValueError("odd bytes")
        return push(self, rid, *args)

    monkeypatch.setattr(DetokenizerState, "push", fragile)
    first, both, *rest = said([*map(opened, "abc"), step("abc", b"xyz", finish), step("ac", b"uv", LENGTH)])
    assert isinstance(first, Failed)
    assert (first.rid, first.status, first.running) == ("b", 500, finish is None)
    assert "odd bytes" in first.message
    assert isinstance(both, Texts)
    assert (both.texts, both.counts, both.ids) == (["x", "", "z"], [1, 0, 1], pack_ids(list(b"xz")))
    assert both.finishes == [finish, None, finish]
    assert both.ends == [False] * 3
    assert isinstance(rest[-1], Texts)


def test_a_text_that_cannot_be_begun_is_refused_and_the_engine_told(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, news = said([opened("a", stop_regex=("a*",)), opened("b"), step("ab", b"xy", LENGTH)])
    assert (failed.rid, failed.status, failed.running) == ("a", 400, True)
    assert news.texts == ["", "y"]

    def broken(*_: Any) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(DetokenizerState, "open", broken)
    (failed,) = said([opened("a")])
    assert (failed.rid, failed.status, failed.running) == ("a", 500, True)
