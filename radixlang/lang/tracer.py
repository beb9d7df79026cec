"""Running a program's function with symbols in place of arguments and answers.

Two uses: the graph of a program, to be printed (`SglFunction.trace`), and the text that it always begins with
(`constant_prefix`), which is computed once for a batch. The latter stops at the first thing that is not known.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from radixlang.errors import ConfigError
from radixlang.lang import ir
from radixlang.lang.chat_templates import ChatTemplate
from radixlang.lang.transcript import Transcript

#: the trace in which a program's function is called by another one
tracing: contextvars.ContextVar[TracerState | None] = contextvars.ContextVar("tracing", default=None)

_PLAIN = (str, int, float, bool, type(None))


class StopTracing(BaseException):
    """What follows depends on something unknown. Not an `Exception`, so that a program does not catch it."""


class Symbol(ir.Argument):
    """An argument or a variable nobody knows yet: what a function asks of it cannot be answered."""

    def _stop(self, *_: Any, **__: Any) -> Any:
        raise StopTracing

    __bool__ = __len__ = __iter__ = __contains__ = __int__ = __float__ = __index__ = _stop
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _stop  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Unknown(Symbol):
    """A symbol of which no text can be made: it can be appended, and nothing else."""

    __str__ = __repr__ = __format__ = __getitem__ = __call__ = Symbol._stop

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else StopTracing


class Named(Symbol):
    """A symbol in a graph: shown by its name wherever text is made of it."""

    def __str__(self) -> str:
        return "{" + self.name + "}"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __getitem__(self, key: Any) -> Named:
        return Named(f"{self.name}[{key!r}]")

    def __getattr__(self, name: str) -> Named:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(f"{self.name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Named:
        return Named(f"{self.name}(…)")


class Trace:
    """A program as a graph. `nodes` are expressions, and a `Trace` for each branch of a fork in its place."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.ret_value: Any = None
        self.unfinished = False

    def lines(self, depth: int = 0) -> Iterator[str]:
        """One line for each node, branches indented."""
        pad = "  " * depth
        yield f"{pad}{self.name}"
        for node in self.nodes:
            if isinstance(node, Trace):
                yield from node.lines(depth + 1)
            else:
                yield f"{pad}  {_shown(node)}"
        if self.unfinished:
            yield f"{pad}  … depends on values that are known only when it runs"

    def print_graph(self) -> None:
        """Print it."""
        print(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _shown(node: Any) -> str:
    match node:
        case ir.ConstantText(value=text):
            return f"text {text!r}"
        case ir.Gen(name=name, sampling=sampling):
            options = ", ".join(f"{key}={value!r}" for key, value in sampling.items())
            return f"gen {name or ''}({options})"
        case ir.Select(name=name, choices=choices, method=method):
            return f"select {name or ''}({choices!r}, {method!r})"
        case ir.RoleBegin(role=role):
            return f"begin {role}"
        case ir.RoleEnd(role=role):
            return f"end {role}"
        case ir.Argument(name=name):
            return f"argument {name}"
        case ir.VarScopeBegin(name=name):
            return f"begin of variable {name}"
        case ir.VarScopeEnd(name=name):
            return f"end of variable {name}"
        case ir.SeparateReasoning(expr=expr):
            inner = expr.items if isinstance(expr, ir.ExprList) else [expr]
            return "separate reasoning of " + ", ".join(_shown(part) for part in inner if part is not None)
        case other:
            return str(other)


class TracerState:
    """Stands for a `ProgramState` while the function is traced."""

    def __init__(self, trace: Trace, symbol: type[ir.Argument], visit: Callable[[ir.Expr], None]) -> None:
        self._trace = trace
        self._symbol = symbol
        self._visit = visit
        self._values: dict[str, Any] = {}
        self.ret_value: Any = None

    def __iadd__(self, other: Any) -> TracerState:
        expr = ir.as_expr(other)
        for part in expr.items if isinstance(expr, ir.ExprList) else [expr]:
            self._trace.nodes.append(part)
            self._visit(part)
        return self

    def _turn(self, role: str, expr: Any) -> Any:
        if expr is None:
            return self._block(ir.RoleBegin(role), ir.RoleEnd(role))
        self.__iadd__(ir.concatenate(ir.RoleBegin(role), expr, ir.RoleEnd(role)))
        return None

    @contextlib.contextmanager
    def _block(self, begin: ir.Expr, end: ir.Expr) -> Iterator[None]:
        self.__iadd__(begin)
        yield
        self.__iadd__(end)

    def system(self, expr: Any = None) -> Any:
        return self._turn("system", expr)

    def user(self, expr: Any = None) -> Any:
        return self._turn("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        return self._turn("assistant", expr)

    def var_scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self._block(ir.VarScopeBegin(name), ir.VarScopeEnd(name))

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> TracerGroup:
        branches = []
        for index in range(size):
            trace = Trace(f"branch {index} of {size}")
            self._trace.nodes.append(trace)
            branches.append(TracerState(trace, self._symbol, self._fork_visit()))
            branches[-1]._values = dict(self._values)
        return TracerGroup(branches, self)

    def _fork_visit(self) -> Callable[[ir.Expr], None]:
        if self._symbol is Unknown:
            raise StopTracing
        return self._visit

    @contextlib.contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator[TracerState]:
        yield self.fork(1)[0]

    def set_var(self, name: str, value: Any) -> None:
        self._values[name] = value

    __setitem__ = set_var

    def get_var(self, name: str) -> Any:
        return self._values[name] if name in self._values else self._symbol(name)

    __getitem__ = get_var

    def __contains__(self, name: str) -> bool:
        return True

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> TracerState:
        """Another program is called: its graph is a part of this one."""
        inner = trace_program(
            function.func,
            function.arg_names,
            {
                **function.defaults,
                **function.bind_arguments,
                **dict(zip(function.arg_names, args, strict=False)),
                **kwargs,
            },
            None,
            function.__name__,
        )
        self._trace.nodes.append(inner)
        state = TracerState(inner, self._symbol, self._visit)
        state.ret_value = inner.ret_value
        return state

    def _unknown(self, *_: Any, **__: Any) -> Any:
        raise StopTracing

    text = messages = sync = error = get_meta_info = text_iter = text_async_iter = _unknown


class TracerGroup:
    """Stands for a `ProgramStateGroup`."""

    def __init__(self, states: list[TracerState], source: TracerState) -> None:
        self.states = states
        self._source = source

    def join(self, mode: str = "gather_variable") -> None:
        """Variables of the branches are symbols in the source anyway."""

    def __getitem__(self, index: int) -> TracerState:
        return self.states[index]

    def __setitem__(self, index: int, state: TracerState) -> None:
        self.states[index] = state

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[TracerState]:
        return iter(self.states)

    def __iadd__(self, other: Any) -> TracerGroup:
        for index, state in enumerate(self.states):
            part = other(index) if callable(other) else other[index] if isinstance(other, list) else other
            self.states[index] = state.__iadd__(part)
        return self


def trace_program(
    func: Callable[..., Any],
    arg_names: Sequence[str],
    given: dict[str, Any],
    template: ChatTemplate | None,
    name: str | None = None,
) -> Trace:
    """The graph of a program; arguments that are not given, and answers, are shown by their names.

    Raises:
        ConfigError: a given argument that the function does not have.
    """
    for key in given:
        if key not in arg_names:
            raise ConfigError(f"Program {func.__name__} has no argument {key!r}.")
    trace = Trace(name or func.__name__)
    default = template.default_system if template is not None else None
    state = TracerState(trace, Named, lambda _: None)
    if default is not None:
        state._visit = _DefaultSystem(trace, default)
    token = tracing.set(state)
    try:
        trace.ret_value = func(state, **{**{key: Named(key) for key in arg_names}, **given})
    except (StopTracing, TypeError, AttributeError, ValueError):
        trace.unfinished = True
    finally:
        tracing.reset(token)
    return trace


class _DefaultSystem:
    """Puts the template's system turn in front of a first turn of another role."""

    def __init__(self, trace: Trace, text: str) -> None:
        self._trace = trace
        self._text = text
        self._seen = False

    def __call__(self, node: ir.Expr) -> None:
        if self._seen or not isinstance(node, ir.RoleBegin):
            return
        self._seen = True
        if node.role != "system":
            turn = [ir.RoleBegin("system"), ir.ConstantText(self._text), ir.RoleEnd("system")]
            self._trace.nodes[-1:-1] = turn


def constant_prefix(
    func: Callable[..., Any], arg_names: Sequence[str], known: dict[str, Any], template: ChatTemplate
) -> str:
    """The text that the program begins with whatever its unknown arguments are.

    The function runs up to the first unknown value; whatever it raises by then only ends the prefix.
    """
    transcript = Transcript(template)

    def visit(node: ir.Expr) -> None:
        match node:
            case ir.ConstantText(value=text):
                transcript.say(text)
            case ir.RoleBegin(role=role):
                transcript.begin(role)
            case ir.RoleEnd(role=role):
                transcript.end(role)
            case ir.VarScopeBegin() | ir.VarScopeEnd():
                pass
            case _:
                raise StopTracing

    state = TracerState(Trace(func.__name__), Unknown, visit)
    token = tracing.set(state)
    try:
        func(state, **{**{name: Unknown(name) for name in arg_names}, **known})
    except (StopTracing, Exception):
        pass
    finally:
        tracing.reset(token)
    return transcript.text


def common_arguments(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The plain arguments that are equal in all items, which therefore belong to the constant part."""
    first, *rest = items
    return {
        name: value
        for name, value in first.items()
        if isinstance(value, _PLAIN)
        and all(name in item and type(item[name]) is type(value) and item[name] == value for item in rest)
    }
