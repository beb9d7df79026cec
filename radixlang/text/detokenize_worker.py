"""The detokenizer's state: for every open request its text so far, and the decision where a stop string ends it.

Plain arguments in, plain results out; the process round it moves messages. A stop found here ends the stream at
once, and whoever calls must have the engine abort the request: it has not seen the text. Must not know messages,
sockets or the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radixlang.sampling_params import SamplingParams
from radixlang.text.detokenizer import IncrementalDetokenizer
from radixlang.text.stops import StopMatcher
from radixlang.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one step adds to a request.

    `ids` are the tokens that count (a stop inside a group cuts the rest off); `completion_tokens` counts all up
    to here; `finish_reason` is None while it runs. `stopped_by_text`: the stop was found here, so the engine
    still has to be told.
    """

    rid: str
    text: str
    ids: Sequence[int]
    completion_tokens: int
    finish_reason: dict[str, Any] | None = None
    stopped_by_text: bool = False


class _OpenText:
    """One request's reader, stop matcher and token count."""

    def __init__(self, tokenizer: Tokenizer, prompt_tail_ids: Sequence[int], sampling: SamplingParams) -> None:
        self.sampling = sampling
        self.reader = IncrementalDetokenizer(
            tokenizer,
            sampling.skip_special_tokens,
            sampling.spaces_between_special_tokens,
            prompt_tail_ids,
        )
        self.matcher: StopMatcher | None = None
        if sampling.stop or sampling.stop_regex:
            self.matcher = StopMatcher(sampling.stop, sampling.stop_regex, sampling.no_stop_trim)
        # A special token named as a stop string stops, although it does not show in the text when skipped.
        self.stop_tokens: dict[int, str] = {}
        for stop in sampling.stop:
            index = tokenizer.token_to_id(stop)
            if index is not None and index in tokenizer.special_ids:
                self.stop_tokens[index] = stop
        self.count = 0

    def read(self, ids: Sequence[int]) -> tuple[str, int, str | None]:
        """(new text, how many of `ids` count, the stop that is complete or None)."""
        matcher, least = self.matcher, self.sampling.min_new_tokens
        if matcher is None:
            self.count += len(ids)
            return self.reader.push(ids), len(ids), None
        out = []
        for used, index in enumerate(ids, 1):
            self.count += 1
            text, matched = matcher.push(self.reader.push((index,)), self.count >= least)
            out.append(text)
            if matched is None and index in self.stop_tokens and self.count >= least:
                matched = self.stop_tokens[index]
                out.append(self.finish())
            if matched is not None:
                return "".join(out), used, matched
        return "".join(out), len(ids), None

    def finish(self) -> str:
        """The text still held back, which may itself complete a stop (a broken character at the very end)."""
        rest = self.reader.finish()
        if self.matcher is None:
            return rest
        text, matched = self.matcher.push(rest)
        return text if matched is not None else text + self.matcher.finish()


class DetokenizerState:
    """All open requests of one detokenizer. Every call costs what its tokens cost, however long the texts are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._open: dict[str, _OpenText] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, rid: str, prompt_tail_ids: Sequence[int], sampling: SamplingParams) -> None:
        """Begins a request; a few ids of the prompt's end suffice. Raises RequestError for a bad stop_regex."""
        self._open[rid] = _OpenText(self._tokenizer, prompt_tail_ids, sampling)

    def close(self, rid: str) -> None:
        """Forgets a request that ended without a last token (aborted, failed); unknown ones are ignored."""
        self._open.pop(rid, None)

    def push(self, rid: str, ids: Sequence[int], finish_reason: dict[str, Any] | None = None) -> TextDelta | None:
        """Adds the tokens of one step, and ends the request if `finish_reason` is given or a stop is complete.

        A stop in the text beats the engine's reason in the same step. The end token that the engine names as
        `matched` counts, but has no text unless `no_stop_trim`. None for a request that is not open (tokens in
        flight behind a stop).
        """
        request = self._open.get(rid)
        if request is None:
            return None
        shown = len(ids)
        if finish_reason is not None and _ends_with_stop(ids, finish_reason):
            named = ids[-1] in request.stop_tokens  # then the stop string is the reason
            shown -= not (named or request.sampling.no_stop_trim)
        text, used, matched = request.read(ids[:shown])
        if matched is not None:
            del self._open[rid]
            reason = {"type": "stop", "matched": matched}
            return TextDelta(rid, text, ids[:used], request.count, reason, stopped_by_text=True)
        request.count += len(ids) - shown
        if finish_reason is not None:
            text += request.finish()
            del self._open[rid]
        return TextDelta(rid, text, ids, request.count, finish_reason)


def _ends_with_stop(ids: Sequence[int], finish_reason: dict[str, Any]) -> bool:
    matched = finish_reason.get("matched")
    return finish_reason.get("type") == "stop" and isinstance(matched, int) and len(ids) > 0 and ids[-1] == matched
