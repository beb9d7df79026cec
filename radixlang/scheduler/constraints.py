"""The grammars of an engine's requests: requests wait while theirs are compiled, move along them, get their masks.

Whatever goes wrong in a grammar ends as a `GrammarFailure`: it is one request's matter and never the engine's.
Must not know rows' places, pages or plans' layout: it is told which requests, and says which tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from radixlang.errors import RequestError
from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.filling import Filling, together
from radixlang.grammar.grammar import Grammar, GrammarState, Mask
from radixlang.grammar.manager import GrammarManager
from radixlang.grammar.tables import AutomatonTable
from radixlang.log import get_logger
from radixlang.messages import GrammarSpec
from radixlang.plan import Action
from radixlang.scheduler.request import Draft, Request
from radixlang.scheduler.slots import AutomatonSlots

log = get_logger(__name__)

WAIT = "grammar"
SEARCHING = 16
"""constrained requests up to which each is searched for forced tokens as soon as one is drawn: it takes 0.1 ms of
the host's time a request, and saves a step where it finds some"""
STRETCH = 3
"""tokens that may be forced at once in constraints that the device follows: jumping over more is faster"""


class Unconstrained:
    """An engine that serves no constraints: nobody has one, and there is nothing to do."""

    @property
    def waiting(self) -> int:
        """Requests that wait for their grammars."""
        return 0

    def begin(self, request: Request, spec: GrammarSpec) -> None:
        """Make the request wait until its constraint is compiled.

        Raises:
            RequestError: this engine serves none.
        """
        raise RequestError("Constraints need a tokenizer; this server runs with --skip-tokenizer-init.")

    def forget(self, request: Request) -> None:
        """The request has ended."""

    def settle(self) -> list[tuple[Request, str, bool]]:
        """Let those go whose constraints are compiled → requests that cannot have theirs, why, and whether that is
        our fault."""
        return []

    def enter(self, request: Request) -> None:
        """The request is about to get a row."""

    def leave(self, request: Request) -> None:
        """The request gives its row back."""

    def take_actions(self) -> tuple[Action, ...]:
        """What the device must load before the rows that `enter` was told of are set up."""
        return ()

    def distrust(self) -> None:
        """A step raised, and all requests have left their rows: the device may have loaded nothing."""

    def counters(self) -> dict[str, float]:
        """Totals since the start, named as on the metrics page."""
        return {}

    def take_times(self) -> dict[str, list[float]]:
        """Durations in seconds, told once, by the name of their histogram on the metrics page."""
        return {}

    def warm_up(self) -> None:
        """Prepare what all compilations need."""

    def close(self) -> None:
        """End the threads."""


class Constraints(Unconstrained):
    """`manager` compiles; `jump`: tokens that must follow are written without asking the model; `slots`: automata
    that the device can follow at a time; `host_rows`: makes an int32 array for masks (see `Platform`)."""

    def __init__(
        self,
        manager: GrammarManager,
        jump: bool = True,
        slots: int = 0,
        host_rows: Callable[[int, int], npt.NDArray[np.int32]] = lambda *sizes: np.empty(sizes, np.int32),
    ) -> None:
        self._manager = manager
        self._jump = jump
        self._compiling: dict[str, tuple[Request, GrammarSpec, Future[Grammar]]] = {}
        self._host_rows = host_rows
        self._rows: npt.NDArray[np.int32] = np.empty((0, 0), np.int32)
        """what `masks` fills"""
        self._slots = AutomatonSlots(slots, lambda: manager.vocabulary) if slots else None
        self._lost: dict[str, BaseException] = {}
        """why the host cannot follow requests that the device has followed; told in place of their next masks"""
        self._requests = self._aborted = self._forced = self._vetoes = self._followed = 0
        self._drafted = self._missed = 0

    @property
    def waiting(self) -> int:
        return len(self._compiling)

    def begin(self, request: Request, spec: GrammarSpec) -> None:
        self._compiling[request.rid] = (request, spec, self._manager.get(spec))
        self._requests += 1
        request.waits[WAIT] = None

    def forget(self, request: Request) -> None:
        """The request has ended. A compilation that has not begun, and that nobody else waits for, is dropped."""
        self._lost.pop(request.rid, None)
        entry = self._compiling.pop(request.rid, None)
        if entry is None:
            return
        self._aborted += 1
        _, spec, future = entry
        if all(other is not future for *_, other in self._compiling.values()):
            self._manager.drop(spec, future)

    def settle(self) -> list[tuple[Request, str, bool]]:
        failed = []
        for rid, (request, spec, future) in list(self._compiling.items()):
            if not future.done():
                continue
            del self._compiling[rid]
            try:
                request.grammar = self._manager.start(spec, future.result())
                request.table = self._table(request, spec, future.result())
                del request.waits[WAIT]
            except GrammarError as error:
                failed.append((request, str(error), False))
            except BaseException as error:
                failed.append((request, *_told(error)))
        return failed

    def _table(self, request: Request, spec: GrammarSpec, grammar: Grammar) -> AutomatonTable | None:
        """By which the device shall follow the request's grammar, if it can and that is the fastest."""
        if self._slots is None or request.least:  # the device's masks do not change with the number of tokens
            return None
        table = self._manager.table(spec, grammar, request.ignores_eos)
        jumps = self._jump and request.logprobs is None
        return None if table is None or (jumps and table.stretch > STRETCH) else table

    def enter(self, request: Request) -> None:
        """The request is about to get a row. Where the device has no room for its table, the host follows it from
        here on."""
        if request.table is None or self._slots is None:
            return
        if self._slots.enter(request):
            self._followed += not request.admission
            return
        request.table = None
        try:
            for token in request.output().tolist():
                if not _grammar(request).accept(token):
                    raise GrammarFailure("The constraint refuses a token that the device allowed.", ours=True)
        except BaseException as error:
            self._lost[request.rid] = error

    def leave(self, request: Request) -> None:
        if self._slots is not None:
            self._slots.leave(request)

    def take_actions(self) -> tuple[Action, ...]:
        return self._slots.take_actions() if self._slots is not None else ()

    def distrust(self) -> None:
        if self._slots is not None:
            self._slots.forget()

    def take(self, request: Request, token: int) -> int | None:
        """Go on by the token that was drawn. → None: done; otherwise it may not stand there, and so many tokens
        before it are undone as well.

        Raises:
            GrammarFailure: the constraint fails.
        """
        grammar = _grammar(request)
        try:
            if grammar.accept(token):
                return None
            self._vetoes += 1
            return grammar.backtrack()
        except BaseException as error:
            _fail(error)

    def jump(self, request: Request, last: int, room: int, flying: int, company: int) -> list[int]:
        """Tokens that must follow `last`, the newest, now, at most `room`; the grammar has accepted them. None if
        they are not more than `flying`, the tokens that are being drawn by what is launched. In the `company` of
        many constrained requests, those that are known already: `masks` finds others, in all threads.

        Raises:
            GrammarFailure: the constraint fails.
        """
        grammar = _grammar(request)
        if not self._jump or request.logprobs is not None or room <= flying or last in request.ends:
            return []
        out: list[int] = []
        try:
            forced = grammar.forced() if company <= SEARCHING else grammar.known()
            if len(forced) <= flying:
                return []
            for token in forced[:room]:
                if not grammar.accept(token):
                    break
                out.append(token)
                if token in request.ends:
                    break
        except BaseException as error:
            _fail(error)
        self._forced += len(out)
        return out

    def draft(self, request: Request) -> Draft | None:
        """The token that may be computed before the model has confirmed it, if there is one; the grammar has
        accepted it. None where the constraint fails: the model may choose what it does not fail at."""
        grammar = _grammar(request)
        if not self._jump or request.logprobs is not None:
            return None
        try:
            token = next(iter(grammar.draft()), None)
            if token is None or token in request.ends:
                return None
            after = grammar.copy()
            if not after.accept(token) or after.finished:
                return None
        except BaseException as error:
            _told(error)
            return None
        request.grammar = after
        self._drafted += 1
        return Draft(token, grammar)

    def missed(self) -> None:
        """The model has not confirmed a draft."""
        self._missed += 1

    def masks(
        self, rows: Sequence[tuple[Request, GrammarState | None, int] | None]
    ) -> tuple[np.ndarray, list[tuple[Request, str, bool]]]:
        """Masks [n, words] for a token of each request, given with the state in front of it and the number of
        output tokens there (None: everything is allowed), and which have none, why, and whether that is our fault.
        They are valid until the next call.

        What would end a request before its `min_new_tokens`, and the model's end tokens with `ignore_eos`, are
        left out where anything else may follow: the constraint goes before both.
        """
        vocabulary = self._manager.vocabulary
        if len(self._rows) < len(rows):  # kept: fresh memory costs a page fault every 4 KiB
            self._rows = self._host_rows(1 << (len(rows) - 1).bit_length(), vocabulary.words)
        masks = self._rows[: len(rows)]
        failed: list[tuple[Request, str, bool]] = []
        bound, fillings = [], []
        for row, mask in zip(rows, masks, strict=True):
            if row is None:
                mask[:] = -1
                continue
            request, grammar, made = row
            assert grammar is not None
            without = self._left_out(request, made)
            try:
                if request.rid in self._lost:
                    raise self._lost[request.rid]
                ready = grammar.ready()
                filling = grammar.filling(mask) if ready is None else None
            except BaseException as error:
                mask[:] = -1
                failed.append((request, *_told(error)))
                continue
            if filling is not None:
                bound.append((request, mask))
                fillings.append(_without(filling, mask, without) if without else filling)
            else:
                mask[:] = ready
                _leave_out(mask, without)
        for at, fault in together(fillings).items():
            request, mask = bound[at]
            mask[:] = -1
            failed.append((request, *_told(fault)))
        return masks, failed

    def _left_out(self, request: Request, made: int) -> Collection[int]:
        """Tokens that shall not end the text now."""
        early = made < request.least
        if not early and not request.ignores_eos:
            return ()
        eos_ids = self._manager.vocabulary.eos_ids
        return {*eos_ids, *request.ends} if early else eos_ids

    def counters(self) -> dict[str, float]:
        return {
            "num_grammar_total": float(self._requests),
            "num_grammar_cache_hit_total": float(self._manager.hits),
            "num_grammar_aborted_total": float(self._aborted),
            "num_grammar_device_total": float(self._followed),
            "grammar_forced_tokens_total": float(self._forced),
            "grammar_drafted_tokens_total": float(self._drafted),
            "grammar_missed_drafts_total": float(self._missed),
            "grammar_vetoed_tokens_total": float(self._vetoes),
        }

    def take_times(self) -> dict[str, list[float]]:
        return {"grammar_compilation_time_seconds": self._manager.take_times()}

    def warm_up(self) -> None:
        self._manager.warm_up()

    def close(self) -> None:
        """End the threads. A compilation that has begun is waited for: it has its limits."""
        self._manager.close()


def _grammar(request: Request) -> GrammarState:
    assert request.grammar is not None
    return request.grammar


def _without(filling: Filling[None], row: Mask, tokens: Collection[int]) -> Filling[None]:
    """The filling of `row`, then `_leave_out`."""
    yield from filling
    _leave_out(row, tokens)


def _leave_out(row: Mask, tokens: Collection[int]) -> None:
    """Clear the bits of `tokens`, unless nothing would be left."""
    bits = row.view(np.uint32)
    there = [token for token in tokens if token >> 5 < len(bits) and int(bits[token >> 5]) >> (token & 31) & 1]
    for token in there:
        bits[token >> 5] ^= np.uint32(1 << (token & 31))
    if there and not np.count_nonzero(row):
        for token in there:
            bits[token >> 5] |= np.uint32(1 << (token & 31))


def is_finished(grammar: GrammarState) -> bool:
    """Whether nothing but the end may follow. A state that fails at this fails at its next mask again, which is
    where it ends its request."""
    try:
        return grammar.finished
    except BaseException as error:
        _told(error)
        return False


def _told(error: BaseException) -> tuple[str, bool]:
    """What the client is told, and whether it is our fault. Libraries' panics are no `Exception`s."""
    if isinstance(error, GrammarFailure):
        return str(error), error.ours
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    log.error("a constraint failed", exc_info=error)
    return f"The constraint failed: {type(error).__name__}: {error}", True


def _fail(error: BaseException) -> NoReturn:
    sentence, ours = _told(error)
    raise GrammarFailure(sentence, ours) from error
