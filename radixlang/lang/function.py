"""`SglFunction`: a Python function as a program that can be run, run in batches, bound, cached and traced."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextvars
import difflib
import functools
import inspect
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from radixlang.errors import ConfigError, ProgramError
from radixlang.lang import loop
from radixlang.lang.backends.base import Backend
from radixlang.lang.global_config import backend_of, global_config
from radixlang.lang.params import SamplingParams
from radixlang.lang.program import Program
from radixlang.lang.progress import progress
from radixlang.lang.state import Lease, ProgramState, current_branch
from radixlang.lang.tracer import StopTracing, Trace, common_arguments, constant_prefix, trace_program, tracing
from radixlang.lang.where import error_of

#: characters from which a constant prefix is worth a call of its own
LEAST_PREFIX = 64
#: programs of a batch in generator style that are begun before the first is taken
AHEAD = 200


class SglFunction:
    """A program. `func`'s first parameter is the state and must be named `s`.

    `num_api_spec_tokens`: on remote backends, ask for so many tokens more than a call needs, and answer the
    following calls from them.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bind_arguments: dict[str, Any] | None = None,
    ) -> None:
        if not inspect.isroutine(func):
            raise ConfigError(f"A program is made of a function, not {func!r}; bind() gives it arguments.")
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise ConfigError(f"Program {func.__name__} must not yield: its function would never run.")
        spare = num_api_spec_tokens
        if spare is not None and (not isinstance(spare, int) or spare < 0):
            raise ConfigError(f"num_api_spec_tokens must be a whole number, at least 0, got {spare!r}.")
        self.__name__: str = func.__name__
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = bind_arguments or {}
        self._signature = inspect.signature(func)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].name != "s":
            raise ConfigError(f"The first parameter of program {func.__name__} must be named s.")
        named = [p for p in parameters[1:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.arg_names = [parameter.name for parameter in named]
        self.defaults = {p.name: p.default for p in named if p.default is not p.empty}
        functools.update_wrapper(self, func)

    # ---- running ----

    def bind(self, **kwargs: Any) -> SglFunction:
        """The same program with some arguments given."""
        unknown = [name for name in kwargs if name not in self.arg_names]
        if unknown:
            raise ConfigError(f"Program {self.__name__} has no argument {unknown[0]!r}.")
        return SglFunction(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **kwargs})

    def run(
        self,
        *args: Any,
        max_new_tokens: int = 128,
        n: int = 1,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        stop_regex: str | Sequence[str] | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        ignore_eos: bool = False,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        return_text_in_logprobs: bool | None = None,
        stream: bool = False,
        backend: Any = None,
        use_thread: bool = True,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the program; the sampling arguments hold for every call that does not set its own.

        Returns when the function has: calls that it did not read go on, so that several programs overlap. With
        `stream=True` it returns at once and the function goes on in a thread. `use_thread` has no effect: calls
        of all programs live on one event loop.

        Raises:
            ConfigError: no backend. TypeError: arguments that the function does not take. Whatever the function
            raises; ProgramError where it read a failed value.
        """
        if (traced := tracing.get()) is not None:
            return traced.call(self, args, kwargs)  # type: ignore[return-value]
        return self._run(_sampling(locals()), args, kwargs, backend, stream)

    async def run_async(
        self, *args: Any, backend: Any = None, stream: bool = False, **kwargs: Any
    ) -> ProgramState:
        """`run` for coroutines: an async program runs on the caller's loop, another in a thread of its own.

        Takes the sampling arguments of `run` by name. Returns when all calls have ended, with `stream=True` at
        once.
        """
        given = {name: kwargs.pop(name) for name in list(kwargs) if name in _SAMPLING}
        params = SamplingParams().updated(given)
        if stream:
            return self._run(params, args, kwargs, backend, True)
        self._check_arguments(args, kwargs)
        program = self._program(params, backend, False, True)
        state = ProgramState(program.root, Lease(program))
        own = ProgramState(program.root)
        try:
            if inspect.iscoroutinefunction(self.func):
                await self._coroutine(program, own, state, args, kwargs)
            else:
                await asyncio.wrap_future(self._in_thread(program, own, args, kwargs, state))
            await state._branch.wait_async(lambda: True if state._branch.over() else None)
        except asyncio.CancelledError:
            program.cancel("The program was cancelled")
            raise
        return state

    def _program(self, params: SamplingParams, backend: Any, stream: bool, background: bool) -> Program:
        return Program(self.__name__, backend_of(backend), params, stream, self.num_api_spec_tokens, background)

    def _check_arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """See whether the function takes these arguments.

        Raises:
            TypeError: it does not.
        """
        if args and isinstance(args[0], ProgramState):
            raise TypeError(
                f"Program {self.__name__} begins a state of its own; to append to s, call a plain function that "
                f"takes s, or {self.__name__}.func(s, …)."
            )
        try:
            self._signature.bind(None, *args, **{**self.bind_arguments, **kwargs})
        except TypeError as error:
            known = [*self.arg_names, *_SAMPLING, "backend", "stream"]
            unknown = [name for name in kwargs if name not in known]
            near = difflib.get_close_matches(unknown[0], known, 1) if unknown else []
            hint = f"; did you mean {near[0]}?" if near else "."
            raise TypeError(f"Program {self.__name__}: {error}{hint}") from None

    def _run(
        self, params: SamplingParams, args: Sequence[Any], kwargs: dict[str, Any], backend: Any, stream: bool
    ) -> ProgramState:
        self._check_arguments(args, kwargs)
        is_async = inspect.iscoroutinefunction(self.func)
        program = self._program(params, backend, stream, stream)
        state = ProgramState(program.root, Lease(program))
        # What the function holds must not keep the program alive once its caller has dropped it.
        own = ProgramState(program.root) if stream else state
        if is_async:
            work = self._coroutine(program, own, state, args, kwargs)
            if stream:
                loop.submit(work)
            else:
                loop.call(work)
        elif stream:
            self._in_thread(program, own, args, kwargs, state)
        else:
            token = current_branch.set(own._branch)
            try:
                state.ret_value = self.func(own, *args, **{**self.bind_arguments, **kwargs})
            except BaseException:
                program.cancel(f"The function of program {program.name} failed")
                raise
            finally:
                current_branch.reset(token)
            program.function_returned()
        return state

    def _in_thread(
        self,
        program: Program,
        own: ProgramState,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        caller: ProgramState,
    ) -> concurrent.futures.Future[None]:
        """Run the function in a thread that ends with it. `caller` gets the return value if it still exists."""
        outer = weakref.ref(caller)
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

        def body() -> None:
            current_branch.set(own._branch)
            try:
                value = self.func(own, *args, **{**self.bind_arguments, **kwargs})
            except BaseException as cause:
                program.function_returned(_failure(cause, self.func))
                outcome.set_exception(cause)
                return
            if (target := outer()) is not None:
                target.ret_value = value
            program.function_returned()
            outcome.set_result(None)

        context = contextvars.copy_context()
        name = f"radixlang-program-{program.name}"
        threading.Thread(target=context.run, args=(body,), name=name, daemon=True).start()
        return outcome

    async def _coroutine(
        self,
        program: Program,
        own: ProgramState,
        state: ProgramState,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        """Run an async function on the loop that this is awaited on."""
        token = current_branch.set(own._branch)
        try:
            state.ret_value = await self.func(own, *args, **{**self.bind_arguments, **kwargs})
        except asyncio.CancelledError:
            program.cancel("The program was cancelled")
            raise
        except BaseException as cause:
            program.function_returned(_failure(cause, self.func))
            if not program.stream:
                raise
        else:
            program.function_returned()
        finally:
            current_branch.reset(token)

    def run_batch(
        self,
        batch_kwargs: Iterable[Any],
        *,
        max_new_tokens: int = 128,
        n: int = 1,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        stop_regex: str | Sequence[str] | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        ignore_eos: bool = False,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        return_text_in_logprobs: bool | None = None,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
    ) -> Any:
        """Run the program once for each item: a dict of arguments, or a list or tuple of positional ones.

        States come in the order of the items. One that failed does not lose the others: its state raises when it
        is read. What all begin with is computed first. `generator_style=True` gives an iterator that runs ahead of
        its reader by 200 programs.

        Raises:
            ConfigError: an item that does not fit the function, no backend, or no number of threads.
        """
        params = _sampling(locals())
        if tracing.get() is not None:
            raise StopTracing
        items = [self._arguments(item) for item in batch_kwargs]
        if not items:
            return iter(()) if generator_style else []
        chosen = backend_of(backend)
        threads = max(96, 16 * (os.cpu_count() or 1)) if num_threads == "auto" else num_threads
        if not isinstance(threads, int) or threads < 1:
            raise ConfigError(f"num_threads must be 'auto' or a whole number, at least 1, got {num_threads!r}.")
        states = self._batch(items, params, chosen, min(threads, len(items)), progress_bar)
        return states if generator_style else list(states)

    def _arguments(self, item: Any) -> dict[str, Any]:
        """An item of a batch as keyword arguments."""
        if isinstance(item, dict):
            values = item
        elif isinstance(item, list | tuple):
            free = [name for name in self.arg_names if name not in self.bind_arguments]
            if len(item) > len(free):
                raise ConfigError(f"Program {self.__name__} takes {len(free)} arguments, an item has {len(item)}.")
            values = dict(zip(free, item, strict=False))
        else:
            raise ConfigError(f"An item of a batch is a dict, list or tuple, not {type(item).__name__}.")
        try:
            self._signature.bind(None, **{**self.bind_arguments, **values})
        except TypeError as error:
            raise ConfigError(f"An item of the batch does not fit program {self.__name__}: {error}.") from None
        return values

    def _batch(
        self,
        items: list[dict[str, Any]],
        params: SamplingParams,
        backend: Backend,
        threads: int,
        progress_bar: bool,
    ) -> Iterator[ProgramState]:
        self._cache_common(items, backend)
        # The window bounds memory when the items are many and the reader is slow.
        waiting: collections.deque[concurrent.futures.Future[ProgramState]] = collections.deque()
        running: set[Program] = set()
        stopped = threading.Event()

        def one(item: dict[str, Any]) -> ProgramState:
            program = self._program(params, backend, False, False)
            running.add(program)
            if stopped.is_set():  # looked at after the program can be seen by whoever sets it
                program.cancel("The batch was given up")
            state = ProgramState(program.root, Lease(program))
            token = current_branch.set(program.root)
            error = None
            try:
                call = self.func(state, **{**self.bind_arguments, **item})
                state.ret_value = loop.call(call) if inspect.iscoroutine(call) else call
            except Exception as cause:
                error = _failure(cause, self.func)
            finally:
                current_branch.reset(token)
            program.function_returned(error)
            root = program.root
            root.wait(lambda: True if root.over() and (program.ended or root.error) else None)
            running.discard(program)
            bar.update()
            return state

        bar = progress(len(items), progress_bar)
        pool = concurrent.futures.ThreadPoolExecutor(threads, "radixlang-batch")
        try:
            rest = iter(items)
            for item in rest:
                waiting.append(pool.submit(one, item))
                if len(waiting) >= max(AHEAD, threads):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stopped.set()
            for future in waiting:
                future.cancel()
            for program in list(running):
                program.cancel("The batch was given up")
            pool.shutdown(wait=True)
            bar.close()

    def _cache_common(self, items: list[dict[str, Any]], backend: Backend) -> None:
        if len(items) < 2 or not global_config.enable_precache_with_tracing:
            return
        if not backend.capabilities.prefix_cache or inspect.iscoroutinefunction(self.func):
            return
        same = common_arguments([{**self.defaults, **self.bind_arguments, **item} for item in items])
        prefix = constant_prefix(self.func, self.arg_names, same, backend.chat_template())
        if len(prefix) > LEAST_PREFIX:
            loop.call(backend.cache_prefix(prefix))

    # ---- looking ahead ----

    def trace(self, *, backend: Any = None, **kwargs: Any) -> Trace:
        """The program as a graph, found by running the function with symbols for the arguments not given.

        Raises:
            ConfigError: an argument that the function does not have, or the program is a coroutine.
        """
        self._check_traceable()
        template = backend_of(backend).chat_template() if _has_backend(backend) else None
        return trace_program(self.func, self.arg_names, {**self.bind_arguments, **kwargs}, template)

    def cache(self, backend: Any = None) -> None:
        """Put what the program always begins with into the backend's cache."""
        self._check_traceable()
        chosen = backend_of(backend)
        prefix = constant_prefix(self.func, self.arg_names, self.bind_arguments, chosen.chat_template())
        if prefix:
            loop.call(chosen.cache_prefix(prefix))

    def _check_traceable(self) -> None:
        if inspect.iscoroutinefunction(self.func):
            raise ConfigError(f"Program {self.__name__} is a coroutine, and only functions can be traced.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`run`; inside a trace, either becomes a part of the graph."""
        return self.run(*args, **kwargs)

    def __repr__(self) -> str:
        return f"SglFunction({self.__name__})"


_SAMPLING = frozenset(SamplingParams.__dataclass_fields__)


def _sampling(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams().updated({name: values[name] for name in _SAMPLING if name in values})


def _has_backend(backend: Any) -> bool:
    return backend is not None or global_config.default_backend is not None


def _failure(cause: BaseException, func: Callable[..., Any]) -> ProgramError:
    """The error of a function: the line of its file that raised it, or called what did."""
    if isinstance(cause, ProgramError):
        return cause
    file = func.__code__.co_filename
    lines = [frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == file]
    return error_of(cause, f"{file}:{lines[-1]}" if lines else file)
