"""How much a chat request lets the model think, and where a constraint begins in an answer with thoughts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlang.errors import RequestError
from radixlang.messages import GrammarSpec
from radixlang.parsers.reasoning import SWITCHES, ThinkingFormat
from radixlang.server.hub import Hub
from radixlang.server.openai.protocol import EFFORTS, ChatBody, Thinking

BUDGET = "thinking_budget"
MOST = 2**31 - 1


def template_variables(body: ChatBody) -> dict[str, Any]:
    """`chat_template_kwargs` with what other fields say about thinking; the former have the last word.

    Raises:
        RequestError: an effort that there is not.
    """
    efforts = {"reasoning_effort": body.reasoning_effort}
    efforts["reasoning.effort"] = body.reasoning.effort if body.reasoning else None
    for name, value in efforts.items():
        if isinstance(value, str) and value not in EFFORTS:
            known = ", ".join(EFFORTS)
            raise RequestError(f"{name} must be one of {known}, or a number, not {value!r}.", name)
    effort, enabled = body.reasoning_effort, body.enable_thinking
    if body.reasoning is not None:
        effort = body.reasoning.effort if effort is None else effort
        enabled = body.reasoning.enabled if enabled is None else enabled
    if isinstance(body.thinking, bool):
        enabled = body.thinking
    elif body.thinking is not None and body.thinking.type in ("enabled", "disabled"):
        enabled = body.thinking.type == "enabled"
    if effort == "none" and enabled is None:
        enabled = False
    out: dict[str, Any] = {}
    if effort is not None:
        out["reasoning_effort"] = effort
    if enabled is not None:
        out |= dict.fromkeys(SWITCHES, enabled)
    return out | (body.chat_template_kwargs or {})


def thinking_budget(body: ChatBody, parsed: bool) -> int | None:
    """Most tokens of thoughts, None for no limit. `parsed`: the server knows where thoughts end.

    Raises:
        RequestError: a budget that cannot be kept.
    """
    outer = body.thinking.budget_tokens if isinstance(body.thinking, Thinking) else None
    given = {"thinking_budget": body.thinking_budget, "max_thinking_tokens": body.max_thinking_tokens}
    given["thinking.budget_tokens"] = outer
    for name, value in given.items():
        if value is not None:
            if not parsed:
                raise RequestError(f"{name} needs a server with a --reasoning-parser.", name)
            return min(value, MOST)
    inner = (body.chat_template_kwargs or {}).get(BUDGET)
    return min(inner, MOST) if parsed and type(inner) is int and inner >= 0 else None


@dataclass(frozen=True)
class Thoughts:
    """What is known of the thoughts of one request's answers. `format` None: there are none to be told apart;
    `opened` as `ThinkingFormat.begins_open` has it."""

    format: ThinkingFormat | None = None
    opened: bool | None = None
    end_ids: tuple[int, ...] = ()

    def tokens(self, ids: Sequence[int], any_thoughts: bool) -> int:
        """How many of an answer's tokens are thoughts, the mark at their end included."""
        if not any_thoughts:
            return 0
        end, size = list(self.end_ids), len(self.end_ids)
        for i in range(len(ids) - size + 1) if size else ():
            if list(ids[i : i + size]) == end:
                return i + size
        return len(ids)


def thoughts_of(hub: Hub, prompt: str, variables: dict[str, Any], continued: bool) -> Thoughts:
    """Thoughts of answers to `prompt`. `continued`: the prompt ends within an answer."""
    format = hub.parsers.reasoning
    if format is None:
        return Thoughts()
    opened = format.begins_open(prompt, variables)
    if continued and not prompt.rstrip().endswith(format.start.strip()):
        opened = False
    return Thoughts(format, opened, hub.parsers.end_ids(format))


def behind_thoughts(
    hub: Hub, spec: GrammarSpec | None, thoughts: Thoughts, budget: int | None
) -> tuple[GrammarSpec | None, Thoughts]:
    """The constraint, which begins where the thoughts end, and the thoughts as it makes them.

    Raises:
        RequestError: a budget for thoughts whose beginning no token tells.
    """
    format = thoughts.format
    if format is None or thoughts.opened is False or (spec is None and budget is None):
        return spec, thoughts
    start = None if thoughts.opened else hub.parsers.start_id(format)
    if not (thoughts.opened or start is not None or format.answer_start):
        # Whether the model thinks is told by its first token. A vocabulary without that token is one of a model
        # that was not taught to think.
        if spec is None:
            raise RequestError(
                f"A thinking budget cannot be held: {format.start!r} is no token of this model, and the prompt "
                "does not begin the thoughts.",
                BUDGET,
            )
        return spec, Thoughts(format, False, thoughts.end_ids)
    end = hub.parsers.end_ids(format, forced=budget is not None)
    spec = spec or GrammarSpec("any", "")
    spec = msgspec.structs.replace(spec, thinking_end=end, thinking_budget=budget, thinking_start=start)
    return spec, Thoughts(format, None if start is not None else True, thoughts.end_ids)
