"""Compiles constraints away from the engine's loop, and keeps what it has compiled."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from radixlang.errors import ConfigError
from radixlang.grammar import ENGINES
from radixlang.grammar.canonical import CanonicalState, Shared
from radixlang.grammar.errors import GrammarError
from radixlang.grammar.grammar import Engine, Grammar, GrammarState
from radixlang.grammar.limits import GrammarLimits, too_long
from radixlang.grammar.native import NativeGrammar
from radixlang.grammar.spec import key_of
from radixlang.grammar.tables import AutomatonTable, automaton_table
from radixlang.grammar.thinking import AnyGrammar, ThinkingGrammar
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.log import get_logger
from radixlang.messages import GrammarSpec

log = get_logger(__name__)

_TRIM_EVERY = 256
"""requests between two looks at how much is held"""
_TRIM_TO = 0.75
"""share of the cache that is left full when it was too full"""
_LONG = 16 << 10
"""characters of a constraint beyond which it is compiled apart, so that short ones never wait for it"""
_FAILED_BYTES = 1024
"""what a constraint counts for in the cache that could not be compiled"""


class CanonicalGrammar:
    """A grammar whose states are `CanonicalState`s."""

    def __init__(self, inner: Grammar, vocabulary: Vocabulary) -> None:
        self.inner = inner
        self._vocabulary = vocabulary
        self._shared = Shared()
        self.uses = 0
        """times that `table` was asked for"""
        self.table: AutomatonTable | None = None
        """of a native grammar that is used more than once"""
        self.endless: AutomatonTable | None = None
        """`table` where end tokens may not stand before they must"""

    @property
    def nbytes(self) -> int:
        tables = sum(table.nbytes for table in (self.table, self.endless) if table is not None)
        return self.inner.nbytes + 400 * len(self._shared) + tables

    def start(self) -> GrammarState:
        return CanonicalState(self.inner.start(), self._vocabulary, self._shared)


class GrammarManager:
    """One per engine. `get` never blocks: it gives a future, which is done at once for what is known already.

    `vocabulary` is called when the first constraint comes, or by `warm_up`; `cache_bytes` bounds what is kept
    beside what is in use.
    """

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        backend: str = "auto",
        limits: GrammarLimits | None = None,
        cache_bytes: int = 256 << 20,
        workers: int = 2,
    ) -> None:
        if backend not in ("auto", "none", *ENGINES.names()):
            names = ", ".join(["auto", "none", *ENGINES.names()])
            raise ConfigError(f"--grammar-backend {backend} is unknown; choose one of {names}.")
        self._make_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._backend = backend
        self._limits = limits or GrammarLimits()
        self._engines: dict[str, Engine] = {}
        self._cache_bytes = cache_bytes
        self._known: OrderedDict[str, Future[Grammar]] = OrderedDict()
        self._held = 0
        """bytes of these when they were compiled or last measured, whichever was later"""
        self._asked = 0
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="grammar")
        self._long_pool = ThreadPoolExecutor(1, thread_name_prefix="long grammar")
        self._table_pool = ThreadPoolExecutor(1, thread_name_prefix="grammar tables")  # nobody waits for these
        self._lock = threading.RLock()
        self._making = threading.RLock()
        """held while a vocabulary or an engine is made; never by who only looks one up"""
        self.hits = 0
        """constraints that were known, or being compiled, when they were asked for"""
        self._times: list[float] = []

    def get(self, spec: GrammarSpec) -> Future[Grammar]:
        """The compiled constraint; its result raises GrammarError when there is none."""
        key = key_of(spec)
        with self._lock:
            future = self._known.get(key)
            if future is None:
                pool = self._pool if len(spec.text) <= _LONG else self._long_pool
                future = self._known[key] = pool.submit(self._timed, spec)
                future.add_done_callback(self._enter)
            else:
                self.hits += 1
            self._known.move_to_end(key)
            self._asked += 1
            if self._asked % _TRIM_EVERY == 0:
                self._pool.submit(self._trim)
        return future

    def warm_up(self) -> Future[None]:
        """Make, in a worker, what the first constraint would otherwise wait for."""
        return self._pool.submit(self._prepare)

    def drop(self, spec: GrammarSpec, future: Future[Grammar]) -> None:
        """Nobody waits for what `get` gave any more: its compilation need not begin."""
        key = key_of(spec)
        with self._lock:
            if self._known.get(key) is future and future.cancel():
                self._known.pop(key, None)  # what is done at its end may have made room already

    def take_times(self) -> list[float]:
        """Seconds that each compilation since the last call took."""
        with self._lock:
            times, self._times = self._times, []
        return times

    def start(self, spec: GrammarSpec, grammar: Grammar) -> GrammarState:
        """A state for one request; `grammar` is what `get` gave for its constraint."""
        if spec.thinking_end:
            grammar = ThinkingGrammar(
                grammar, spec.thinking_end, spec.thinking_budget, self.vocabulary, spec.thinking_start
            )
        return grammar.start()

    def table(self, spec: GrammarSpec, grammar: Grammar, ignore_eos: bool) -> AutomatonTable | None:
        """What a device needs to follow the constraint without the host; None if it cannot, or cannot yet. The
        first call for a constraint returns None, the second has the table made: constraints that are used but
        once are not worth it. `ignore_eos`: end tokens are left out where anything else may follow.
        """
        if spec.thinking_end or not isinstance(grammar, CanonicalGrammar):
            return None
        grammar.uses += 1
        table = grammar.table  # read first: the second call gets none, however soon it is made
        if grammar.uses == 2 and isinstance(grammar.inner, NativeGrammar):
            self._table_pool.submit(self._make_table, grammar, grammar.inner)
        if table is None or not ignore_eos:
            return table
        if grammar.endless is None:
            grammar.endless = table.without(self.vocabulary.eos_mask)
        return grammar.endless

    @property
    def vocabulary(self) -> Vocabulary:
        """Made on first use."""
        if self._vocabulary is None:
            with self._making:  # both workers may want it first
                if self._vocabulary is None:
                    self._vocabulary = self._make_vocabulary()
        return self._vocabulary

    def close(self) -> None:
        """End the workers. What they have begun is waited for, what they have not is dropped."""
        self._pool.shutdown(cancel_futures=True)
        self._long_pool.shutdown(cancel_futures=True)
        self._table_pool.shutdown(cancel_futures=True)

    # ---- in a worker ----

    def _timed(self, spec: GrammarSpec) -> Grammar:
        began = time.perf_counter()
        try:
            return self._compile(spec)
        finally:
            with self._lock:
                self._times.append(time.perf_counter() - began)

    def _compile(self, spec: GrammarSpec) -> Grammar:
        if self._backend == "none":
            raise GrammarError(
                "This server runs with --grammar-backend none and takes no constraints", param=spec.kind
            )
        try:
            if not self.vocabulary.eos_ids:
                raise GrammarError(
                    "Constraints need an end token: name it as eos_token_id in the model's config", param=spec.kind
                )
            if spec.kind == "regex" and (reason := too_long(spec.text)):
                raise GrammarError(
                    f"regex is too large: {reason}, or list fixed texts as guided_choice", param="regex"
                )
            if spec.kind == "any":
                return AnyGrammar(self.vocabulary)
            return CanonicalGrammar(self._engine_for(spec).compile(spec), self.vocabulary)
        except GrammarError:
            raise
        except RecursionError:
            raise GrammarError(f"{spec.kind} is nested too deeply", param=spec.kind) from None
        except BaseException as error:  # a library's panic is no Exception
            log.error("a constraint could not be compiled", exc_info=error)
            # Nobody foresaw it, so nobody knows whether it is the constraint's fault (memory may have been short):
            # who asks next has it compiled again.
            with self._lock:
                self._known.pop(key_of(spec), None)
            raise GrammarError(f"{spec.kind} could not be compiled: {error}", param=spec.kind) from error

    def _make_table(self, grammar: CanonicalGrammar, inner: NativeGrammar) -> None:
        try:
            grammar.table = automaton_table(inner)
        except Exception as error:  # the host can follow it as well
            log.error("a constraint could not be made a table", exc_info=error)

    def _engine_for(self, spec: GrammarSpec) -> Engine:
        reasons = []
        for name in [self._backend] if self._backend != "auto" else ENGINES.always():
            engine = self._engine(name)
            reason = engine.supports(spec)
            if reason is None:
                return engine
            reasons.append(reason)
        raise GrammarError(f"{spec.kind} is not supported: {' '.join(reasons)}", param=spec.kind)

    def _engine(self, name: str) -> Engine:
        engine = self._engines.get(name)
        if engine is None:
            with self._making:
                engine = self._engines.get(name)
                if engine is None:
                    engine = self._engines[name] = ENGINES.get(name)(self.vocabulary, self._limits)
        return engine

    def _prepare(self) -> None:
        names = ENGINES.always() if self._backend == "auto" else [self._backend] * (self._backend != "none")
        for name in names:
            self._engine(name).warm_up()
        if names:
            self.vocabulary.encode("")

    def _enter(self, done: Future[Grammar]) -> None:
        with self._lock:
            self._held += _size(done)
            full = self._held > self._cache_bytes
        if full:
            self._trim()

    def _trim(self) -> None:
        """Forget the oldest constraints if all together hold too much. They grow while they are used, so they are
        measured anew: not under the lock, which the engine's loop takes, since there may be many small ones. Room
        is made for more than one, so that it is not made for every one."""
        with self._lock:
            known = [(key, future) for key, future in self._known.items() if future.done()]
        sizes = [_size(future) for _, future in known]
        total = sum(sizes)
        goal = total if total <= self._cache_bytes else self._cache_bytes * _TRIM_TO
        with self._lock:
            for (key, future), size in list(zip(known, sizes, strict=True))[:-1]:
                if total <= goal:
                    break
                if self._known.get(key) is future:
                    del self._known[key]
                total -= size
            self._held = total


def _size(done: Future[Grammar]) -> int:
    """Bytes that a finished compilation holds on to."""
    error = None if done.cancelled() else done.exception()
    if error is not None:  # its frames hold all that was built until then
        error.__traceback__ = error.__context__ = error.__cause__ = None
    return _FAILED_BYTES if done.cancelled() or error is not None else done.result().nbytes
