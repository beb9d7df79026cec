"""The primitives that programs are written with. Names, order and defaults are the public ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radixlang.lang import ir, loop
from radixlang.lang.choices import ChoicesSamplingMethod, token_length_normalized
from radixlang.lang.function import SglFunction
from radixlang.lang.global_config import backend_of, global_config
from radixlang.lang.state import current_branch
from radixlang.lang.tracer import tracing

#: classes by Unicode property, which constraints know and Python's expressions do not; group 1: not one of them
_PROPERTY = re.compile(r"(\\\\)|\\[pP](?:\{\^?\w+\}|[A-Z])")


def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """Make a program of a Python function whose first parameter is `s`; with or without parentheses."""
    if func is not None:
        return SglFunction(func, num_api_spec_tokens)
    return lambda given: SglFunction(given, num_api_spec_tokens)


def set_default_backend(backend: Any) -> None:
    """Where programs run that are not given a backend: a backend object, a `Runtime` or an `Engine`.

    Raises:
        ConfigError: it is something else.
    """
    if backend is not None:
        backend_of(backend)
    global_config.default_backend = backend


def flush_cache(backend: Any = None) -> bool:
    """Empty the backend's prefix cache; False when there is no backend or it is busy."""
    if backend is None and global_config.default_backend is None:
        return False
    return loop.call(backend_of(backend).flush_cache())


def get_server_info(backend: Any = None) -> dict[str, Any] | bool:
    """Configuration and state of the backend; False when there is no backend or it tells none."""
    if backend is None and global_config.default_backend is None:
        return False
    return loop.call(backend_of(backend).server_info())


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: list[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
) -> ir.Gen | ir.Select:
    """Text by the model, kept in the variable `name`. What is None is taken from `run`.

    `dtype` (int, float, bool, str), `regex` or `json_schema` constrain the text. With `choices` it is a `select`.

    Raises:
        re.error: `regex` is no regular expression. ValueError: arguments that cannot be meant.
    """
    form = {"choices": choices, "dtype": dtype, "regex": regex, "json_schema": json_schema}
    given = [key for key, value in form.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"gen takes one of choices, dtype, regex and json_schema, got {' and '.join(given)}.")
    if choices is not None:
        return select(
            name,
            choices,
            0.0 if temperature is None else temperature,
            token_length_normalized if choices_method is None else choices_method,
        )
    if regex is not None:
        _check_regex(regex)
    values = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": min_tokens,
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "ignore_eos": ignore_eos,
        "return_logprob": return_logprob,
        "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num,
        "return_text_in_logprobs": return_text_in_logprobs,
        "dtype": dtype,
        "regex": regex,
        "json_schema": json_schema,
    }
    return ir.Gen(_name(name), {key: value for key, value in values.items() if value is not None})


def _name(name: Any) -> Any:
    """The name of a variable.

    Raises:
        ValueError: it is something else, such as an argument that should have been given by keyword.
    """
    if name is None or isinstance(name, str | ir.Expr):  # an expression: a symbol of a trace
        return name
    raise ValueError(f"The name of a variable must be a string, got {name!r}.")


def _check_regex(regex: Any) -> None:
    if isinstance(regex, ir.Expr):
        return
    if not isinstance(regex, str):
        raise ValueError(f"regex must be a string, got {regex!r}.")
    try:
        re.compile(_PROPERTY.sub(lambda found: found[1] or "a", regex))
    except re.error as error:
        raise re.error(f"regex {regex!r} is not a valid expression: {error.msg}", regex, error.pos) from None


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> ir.Gen | ir.Select:
    """`gen` of a whole number; the value is its text."""
    return gen(dtype=int, **locals())


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> ir.Gen | ir.Select:
    """`gen` of a string in double quotes; the value has them too."""
    return gen(dtype=str, **locals())


def select(
    name: str | None = None,
    choices: list[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> ir.Select:
    """The one of `choices` that the model likes best here, by `choices_method`.

    Raises:
        ValueError: choices or a method that cannot be meant.
    """
    assert choices is not None, "select needs choices."
    if not isinstance(choices, ir.Expr):  # a symbol of a trace
        listed = [] if isinstance(choices, str) else list(choices)
        if not listed or not all(isinstance(choice, str | ir.Expr) and choice != "" for choice in listed):
            raise ValueError(f"select needs choices, a list of strings that are not empty, got {choices!r}.")
        choices = listed
    if not isinstance(choices_method, ChoicesSamplingMethod):
        raise ValueError(f"choices_method must be one such as token_length_normalized, got {choices_method!r}.")
    return ir.Select(_name(name), choices, temperature, choices_method)


def image(expr: Any) -> ir.Image:
    """A picture: path, URL, base64 text, bytes or PIL image."""
    return ir.Image(expr)


def video(path: str, num_frames: int) -> ir.Video:
    """A film, shown to the model as `num_frames` frames."""
    return ir.Video(path, num_frames)


class Turn(ir.ExprList):
    """An empty turn: append it, or use it as `with user(): …` in a program's function to fill it."""

    def __init__(self, role: str) -> None:
        super().__init__([ir.RoleBegin(role), ir.RoleEnd(role)])

    def _append(self, index: int) -> None:
        branch, traced = current_branch.get(), tracing.get()
        if traced is not None:
            traced += self.items[index]
        elif branch is not None:
            branch.submit(self.items[index])
        else:
            raise RuntimeError(
                "`with user():` stands in the function of a program; elsewhere use `with s.user():`."
            )

    def __enter__(self) -> None:
        self._append(0)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._append(1)


def _role(role: str, expr: Any) -> ir.ExprList:
    return Turn(role) if expr is None else ir.concatenate(ir.RoleBegin(role), expr, ir.RoleEnd(role))


def system(expr: Any = None) -> ir.ExprList:
    """A system turn."""
    return _role("system", expr)


def user(expr: Any = None) -> ir.ExprList:
    """A user's turn."""
    return _role("user", expr)


def assistant(expr: Any = None) -> ir.ExprList:
    """An assistant's turn."""
    return _role("assistant", expr)


def system_begin() -> ir.RoleBegin:
    """A system turn begins."""
    return ir.RoleBegin("system")


def system_end() -> ir.RoleEnd:
    """The system turn ends."""
    return ir.RoleEnd("system")


def user_begin() -> ir.RoleBegin:
    """A user's turn begins."""
    return ir.RoleBegin("user")


def user_end() -> ir.RoleEnd:
    """The user's turn ends."""
    return ir.RoleEnd("user")


def assistant_begin() -> ir.RoleBegin:
    """An assistant's turn begins."""
    return ir.RoleBegin("assistant")


def assistant_end() -> ir.RoleEnd:
    """The assistant's turn ends."""
    return ir.RoleEnd("assistant")


def separate_reasoning(expr: Any = None, model_type: str | None = None) -> ir.SeparateReasoning:
    """Split the reasoning off: variable `x` of `expr` keeps the answer, `x_reasoning_content` gets the rest.

    `model_type` names the syntax (`deepseek-r1`, `qwen3`, …). Ignored while streaming.
    """
    return ir.SeparateReasoning(None if expr is None else ir.as_expr(expr), model_type)
