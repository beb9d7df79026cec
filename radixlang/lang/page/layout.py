"""From the spans of programs to what the page draws: lanes, bars, and the text with its calls in place.

Times become seconds since the first program began. Pure data in, pure data out; must not know HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from radixlang.lang.record import Record, Span

Node = dict[str, Any]
_CALLS = ("gen", "select", "prefix")
#: what a call that was given up has for its error
_CANCELLED = "CancelledError"


def page_data(records: Sequence[Record], title: str | None = None) -> dict[str, Any]:
    """All that the page shows of `records`, as JSON values.

    `lanes` has one entry for each branch, parents before children; `calls` one for each call, `lane` and `row`
    being the place of its bar; `story` nests texts, calls, roles and forks as a reader would see them.
    """
    records = sorted(records, key=lambda record: record.began)
    zero = records[0].began if records else 0.0
    page = _Page()
    story: list[Node] = []
    for number, record in enumerate(records, 1):
        label = f"{record.name} {number}" if len(records) > 1 else record.name
        nodes = page.add(record, label, record.began - zero)
        story += [{"type": "program", "name": label, "nodes": nodes}] if len(records) > 1 else nodes
    calls = page.calls
    names = list(dict.fromkeys(record.name for record in records))
    count = f"{len(records)} programs: " if len(records) > 1 else ""
    return {
        "title": title or count + (", ".join(names) or "no program"),
        "backend": ", ".join(dict.fromkeys(record.backend for record in records)),
        "total": max((lane["end"] for lane in page.lanes), default=0.0),
        "tokens": sum(call["tokens"] or 0 for call in calls),
        "prompt_tokens": sum(call["prompt_tokens"] or 0 for call in calls),
        "cached_tokens": sum(call["cached_tokens"] or 0 for call in calls),
        "errors": page.errors,
        "lanes": page.lanes,
        "calls": calls,
        "story": story,
    }


class _Page:
    """Collects lanes and calls of one record after the other."""

    def __init__(self) -> None:
        self.lanes: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.errors: list[str] = []  # of programs, where no call shows them
        self._shift = self._now = 0.0
        self._children: dict[int | None, list[Span]] = {}

    def add(self, record: Record, label: str, shift: float) -> list[Node]:
        """Lay out one program that began at `shift`; returns its story."""
        self._shift = shift
        self._now = record.now()
        self._children = {}
        for span in list(record.spans):
            self._children.setdefault(span.parent, []).append(span)
        nodes: list[Node] = []
        for root in self._children.get(None, []):
            nodes += self._branch(root, label, -1, 0)
            if root.error and not any(_failed(span) for span in record.spans if span.kind in _CALLS):
                self.errors.append(root.error)
        return nodes

    def _time(self, time: float | None) -> float:
        return round(self._shift + (self._now if time is None else time), 6)

    def _branch(self, span: Span, label: str, parent: int, depth: int) -> list[Node]:
        """Lane and calls of a branch and of those that it forked; returns its story."""
        lane = len(self.lanes)
        inner = self._children.get(span.id, [])
        calls = [child for child in inner if child.kind in _CALLS]
        forks = list(_forks(child for child in inner if child.kind == "branch" and self._began(child)))
        self.lanes.append(
            {
                "label": label,
                "parent": parent,
                "depth": depth,
                "start": self._time(span.started),
                "end": self._time(span.ended),
                "failed": any(map(_failed, calls)) or (parent < 0 and bool(span.error)),
                "rows": 1,
            }
        )
        marks: list[tuple[int, int, Span | list[Span]]] = []
        for call, row in zip(calls, rows(calls, self._now), strict=True):
            self.lanes[lane]["rows"] = max(self.lanes[lane]["rows"], row + 1)
            marks.append((len(call.prompt), call.id, call))
            self.calls.append(self._call(call, lane, row))
        numbers = {call.id: len(self.calls) - len(calls) + i for i, call in enumerate(calls)}
        for fork in forks:
            marks.append((len(fork[0].prompt), fork[0].id, fork))
        stories: dict[int, Node] = {}
        for fork in forks:
            branches = []
            for child in fork:
                place = len(self.lanes)
                nodes = self._branch(child, f"branch {child.fork_index}", lane, depth + 1)
                branches.append({"lane": place, "nodes": nodes})
            stories[fork[0].id] = {"type": "fork", "branches": branches}
        if parent >= 0:
            # A branch exists from the moment the program wrote it; what a reader wants is when it worked.
            work = [call for call in self.calls if call["lane"] >= lane]
            self.lanes[lane]["start"] = min((call["start"] for call in work), default=self.lanes[lane]["start"])
            self.lanes[lane]["end"] = max((call["end"] for call in work), default=self.lanes[lane]["start"])
        return _story(span, sorted(marks, key=lambda mark: mark[:2]), numbers, stories)

    def _began(self, branch: Span) -> bool:
        """Whether the program got to the branch's fork."""
        return bool(branch.prompt or branch.text or self._children.get(branch.id))

    def _call(self, span: Span, lane: int, row: int) -> dict[str, Any]:
        finish = span.meta.get("finish_reason")
        return {
            "lane": lane,
            "row": row,
            "kind": span.kind,
            "name": span.name or ("shared prefix" if span.kind == "prefix" else ""),
            "start": self._time(span.started),
            "first": None if span.first_token is None else self._time(span.first_token),
            "end": self._time(span.ended),
            "running": span.ended is None,
            "prompt_tokens": span.prompt_tokens,
            "cached_tokens": span.cached_tokens,
            "tokens": span.completion_tokens,
            "text": span.text,
            "error": span.error if _failed(span) else None,
            "cancelled": span.error == _CANCELLED,
            "place": span.where,
            "finish": finish.get("type") if isinstance(finish, dict) else finish,
            "choices": _choices(span),
        }


def rows(calls: Sequence[Span], now: float) -> list[int]:
    """A row for each call, so that those which overlap in time lie in different ones; as few as possible."""
    free: list[float] = []  # when each row is free again
    places = [0] * len(calls)
    for index in sorted(range(len(calls)), key=lambda i: calls[i].started):
        call = calls[index]
        row = next((row for row, time in enumerate(free) if time <= call.started), len(free))
        free[row : row + 1] = [now if call.ended is None else call.ended]
        places[index] = row
    return places


def _failed(span: Span) -> bool:
    return span.error is not None and span.error != _CANCELLED


def _forks(branches: Iterator[Span]) -> Iterator[list[Span]]:
    """Branches by fork: each begins with the branch of index 0."""
    number = 0

    def fork_of(span: Span) -> int:
        nonlocal number
        number += span.fork_index == 0
        return number

    for _, group in groupby(branches, fork_of):
        yield list(group)


def _choices(span: Span) -> list[dict[str, Any]] | None:
    """The choices of a select with their scores, where there are any."""
    texts = span.meta.get("choices")
    if not isinstance(texts, list):
        return None
    scores = next(
        (
            span.meta[key]
            for key in ("normalized_unconditional_prompt_logprobs", "normalized_prompt_logprobs")
            if isinstance(span.meta.get(key), list) and len(span.meta[key]) == len(texts)
        ),
        [None] * len(texts),
    )
    return [{"text": text, "score": score} for text, score in zip(texts, scores, strict=True)]


# ---- the text ----


def _story(
    span: Span,
    marks: list[tuple[int, int, Span | list[Span]]],
    numbers: dict[int, int],
    stories: dict[int, Node],
) -> list[Node]:
    """The text of a branch without what it shares with its parent, calls and forks at their places.

    `marks`: (position in the text, id, what is there).
    """
    text = span.text or _latest(marks)
    base = len(span.prompt) if span.kind == "branch" else 0
    regions = list(_regions(text, base, span.meta.get("messages") or []))
    nodes: list[Node] = []
    rest = list(marks)
    for index, (start, end, role) in enumerate(regions):
        last = index == len(regions) - 1
        # A call without text at the end of a turn belongs to the turn.
        inner = [m for m in rest if m[0] < end or last or (role is not None and m[0] == end and _silent(m[2]))]
        rest = [mark for mark in rest if mark not in inner]
        made = list(_filled(text, start, end, inner, numbers, stories))
        if role is not None:
            nodes.append({"type": "role", "role": role, "nodes": made})
        elif len(regions) == 1 or any(node["type"] == "call" for node in made):
            nodes += made
        else:  # between turns: the template's text, and forks
            nodes += [{**node, "type": "markup"} if node["type"] == "text" else node for node in made]
    return nodes + list(_filled(text, len(text), len(text), rest, numbers, stories))


def _silent(mark: Span | list[Span]) -> bool:
    return isinstance(mark, Span) and not mark.text


def _latest(marks: list[tuple[int, int, Span | list[Span]]]) -> str:
    """The text of a branch that has not ended: that of its newest call."""
    calls = [mark for *_, mark in marks if isinstance(mark, Span)]
    return max((call.prompt + call.text for call in calls), key=len, default="")


def _regions(text: str, base: int, messages: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int, str | None]]:
    """`text` from `base` on in order, as (start, end, role): the contents of turns, and what is between them."""
    at = 0
    shown = base
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            content = "".join(part["text"] for part in content if part["type"] == "text")
        start = text.find(content, at) if content else -1
        if start < 0:
            continue
        at = start + len(content)
        if at <= base:
            continue
        start = max(start, base)
        if start > shown:
            yield shown, start, None
        yield start, at, message["role"]
        shown = at
    if shown < len(text):
        yield shown, len(text), None


def _filled(
    text: str,
    start: int,
    end: int,
    marks: Sequence[tuple[int, int, Span | list[Span]]],
    numbers: dict[int, int],
    stories: dict[int, Node],
) -> Iterator[Node]:
    """`text[start:end]` with calls and forks in it; a call's own text is the call's."""
    at = start
    for place, number, mark in marks:
        if at < place <= end:
            yield {"type": "text", "text": text[at:place]}
            at = place
        if isinstance(mark, list):
            yield stories[number]
        elif mark.kind != "prefix":
            yield {"type": "call", "call": numbers[number]}
            if text.startswith(mark.text, at):
                at += len(mark.text)
    if at < end:
        yield {"type": "text", "text": text[at:end]}
