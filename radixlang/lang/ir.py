"""What a program is made of: the expressions that `s += …` takes.

Plain data; `interpreter.py` executes it and `tracer.py` collects it. Must not know how a call is made.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from radixlang.lang.choices import ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""

_DTYPES: dict[Any, str] = {int: REGEX_INT, float: REGEX_FLOAT, bool: REGEX_BOOL, str: REGEX_STR}
_BY_NAME: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
#: a number ends where something else begins
_NUMBER_STOPS = (" ", "\n")


class Expr:
    """Base of all expressions; `a + b` makes a sequence, and either side may be a string."""

    def __add__(self, other: Any) -> ExprList:
        return concatenate(self, other)

    def __radd__(self, other: Any) -> ExprList:
        return concatenate(other, self)


@dataclass
class ConstantText(Expr):
    """Text that stands in the program."""

    value: str


@dataclass
class ExprList(Expr):
    """Expressions one after the other."""

    items: list[Expr]


@dataclass
class Gen(Expr):
    """Text by the model. `sampling` holds the parameters that the program set, by `SamplingParams`' names."""

    name: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass
class Select(Expr):
    """One of `choices`, the one that the model likes best."""

    name: str | None
    choices: list[str]
    temperature: float
    method: ChoicesSamplingMethod


@dataclass
class Image(Expr):
    """A picture: path, URL, base64, data URI, bytes or a PIL image."""

    source: Any


@dataclass
class Video(Expr):
    """A film, of which `num_frames` frames are shown."""

    path: Any
    num_frames: int


@dataclass
class RoleBegin(Expr):
    """A turn of `role` begins."""

    role: str


@dataclass
class RoleEnd(Expr):
    """The turn of `role` ends."""

    role: str


@dataclass
class VarScopeBegin(Expr):
    """From here on, text goes into the variable `name` as well …"""

    name: str


@dataclass
class VarScopeEnd(Expr):
    """… up to here."""

    name: str


@dataclass
class SeparateReasoning(Expr):
    """The reasoning in the text of `expr` is split off; `model_type` names the syntax."""

    expr: Expr | None
    model_type: str | None


@dataclass
class Argument(Expr):
    """Stands for an argument of the program while it is traced."""

    name: str


def as_expr(value: Any) -> Expr:
    """`value` as an expression.

    Raises:
        TypeError: it is neither text nor an expression.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return ConstantText(value)
    raise TypeError(
        f"A program appends text or expressions such as gen(…), not {type(value).__name__}: {value!r}."
    )


def concatenate(*parts: Any) -> ExprList:
    """One flat list of all parts."""
    items: list[Expr] = []
    for part in parts:
        expr = as_expr(part)
        items += expr.items if isinstance(expr, ExprList) else [expr]
    return ExprList(items)


def resolve_dtype(params: SamplingParams) -> SamplingParams:
    """`params` with the dtype as a regular expression, and the stops that end a number.

    Raises:
        ValueError: a type that has no expression.
    """
    if params.dtype is None:
        return params
    dtype = _BY_NAME.get(params.dtype, params.dtype) if isinstance(params.dtype, str) else params.dtype
    regex = _DTYPES.get(dtype)
    if regex is None:
        raise ValueError(f"dtype must be int, float, bool or str, got {params.dtype!r}.")
    stop = [*params.stops, *_NUMBER_STOPS] if dtype in (int, float) else params.stop
    return dataclasses.replace(params, dtype=None, regex=regex, stop=stop)
