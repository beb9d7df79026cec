"""Thoughts and answers: `--reasoning-parser`.

A format is data: which markers stand around the thoughts, whether the model begins inside them, and which variable
of the chat template turns them off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from radixlang.errors import ConfigError
from radixlang.parsers.reader import Reader, Reading, Steps

SWITCHES = ("enable_thinking", "thinking")
"""variables by which chat templates turn thinking on and off"""


@dataclass(frozen=True)
class ThinkingFormat:
    """How a model writes its thoughts."""

    name: str
    start: str = "<think>"
    end: str = "</think>"
    opens: bool = False
    """the text begins inside the thoughts, whether or not `start` stands there"""
    default: bool = True
    """the model thinks when the request does not say"""
    breaks: tuple[str, ...] = ()
    """what also ends the thoughts, and belongs to the answer"""
    inline: bool = False
    """the thoughts stay in the answer, `start` put in front"""
    answer_start: str = ""
    """what stands between the thoughts and the text of an answer; a constraint begins behind it"""

    def begins_open(self, prompt: str, variables: Mapping[str, Any]) -> bool | None:
        """Whether the text after `prompt` begins inside thoughts: True, False, or None when the model decides.
        `variables`: what the chat template was given."""
        tail = prompt.rstrip()
        if tail.endswith(self.end.strip()):
            return False
        if tail.endswith(self.start.strip()):
            return True
        if not self.thinks(variables):
            return False
        return True if self.opens else None

    def thinks(self, variables: Mapping[str, Any]) -> bool:
        """Whether the request lets the model think."""
        for name in SWITCHES:
            if isinstance(variables.get(name), bool):
                return bool(variables[name])
        return self.default


_TAGS = ThinkingFormat("qwen3")
_OPEN = replace(_TAGS, opens=True)
HARMONY = ThinkingFormat(
    "gpt-oss",
    start="<|channel|>analysis<|message|>",
    end="<|end|><|start|>assistant<|channel|>final<|message|>",
    answer_start="<|channel|>final<|message|>",
)

REASONING: dict[str, ThinkingFormat] = {
    format.name: format
    for format in (
        replace(_OPEN, name="deepseek-r1"),
        replace(_TAGS, name="deepseek-v3", default=False),
        _TAGS,
        replace(_OPEN, name="qwen3-thinking"),
        replace(_TAGS, name="glm45"),
        replace(_TAGS, name="interns1"),
        replace(_TAGS, name="mimo"),
        replace(_TAGS, name="granite_thinking_parser"),
        replace(_OPEN, name="nemotron_3"),
        replace(_OPEN, name="step3"),
        replace(_OPEN, name="step3p5"),
        replace(_OPEN, name="minimax"),
        replace(_OPEN, name="minimax-append-think", inline=True),
        ThinkingFormat("kimi", "◁think▷", "◁/think▷"),
        replace(_TAGS, name="kimi_k2", breaks=("<|tool_calls_section_begin|>",)),
        ThinkingFormat("mistral", "[THINK]", "[/THINK]"),
        ThinkingFormat("gemma4", "<|channel>thought\n", "<channel|>"),
        ThinkingFormat("cohere_command4", "<|START_THINKING|>", "<|END_THINKING|>"),
        HARMONY,
    )
}
"""SGLang's names. Where a name is missing, its format is not known to us for certain."""

_DETECTED = (
    ("<|channel|>analysis", "gpt-oss"),
    ("<|START_THINKING|>", "cohere_command4"),
    ("<|channel>thought", "gemma4"),
    ("[THINK]", "mistral"),
    ("◁think▷", "kimi"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax"),
)


def find_reasoning(name: str, template: str | None) -> ThinkingFormat | None:
    """The format called `name`; None for `none`. `auto` looks for the markers in the chat template's source.

    Raises:
        ConfigError: an unknown name; lists the known ones.
    """
    if name == "auto":
        found = detect_reasoning(template or "")
        return REASONING[found] if found else None
    if name == "none":
        return None
    if name not in REASONING:
        known = ", ".join(NAMES)
        raise ConfigError(f"--reasoning-parser {name!r} is no reasoning parser; known are: {known}.")
    return REASONING[name]


def thinking_format(name: str | None) -> ThinkingFormat:
    """The format of that name; None: `<think>` tags.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """
    if name is not None and name not in REASONING:
        raise ValueError(f"There is no format of thoughts {name!r}; there are {', '.join(sorted(REASONING))}.")
    return REASONING[name or "qwen3"]


def detect_reasoning(template: str) -> str | None:
    """The name of the format that a chat template's source speaks of."""
    for marker, name in _DETECTED:
        if marker in template:
            # Kimi K2 has versions without thoughts.
            return None if name == "kimi_k2" and "</think>" not in template else name
    if "</think>" not in template:
        return None
    if "<｜Assistant｜>" in template:
        return "deepseek-v3" if "thinking" in template.replace("enable_thinking", "") else "deepseek-r1"
    if "<arg_key>" in template:
        return "glm45"
    # Where the template opens the thoughts itself, the prompt tells.
    return "qwen3"


@dataclass
class Thought:
    """What new text brought."""

    reasoning: str = ""
    text: str = ""


class ReasoningParser:
    """Splits one text. `opened` as `ThinkingFormat.begins_open` has it; `verbatim` keeps markers and white space
    in the reasoning, so that reasoning and text together are what the model wrote."""

    def __init__(self, format: ThinkingFormat, opened: bool | None, verbatim: bool = False) -> None:
        self.format = format
        self.opened = opened
        self.verbatim = verbatim
        self._new = Thought()
        self._space = ""
        read = self._read_harmony if format.name == HARMONY.name else self._read
        self._reading = Reading(read)

    def feed(self, text: str) -> Thought:
        """The next piece of text."""
        self._reading.feed(text)
        return self._taken()

    def close(self) -> Thought:
        """The text has ended."""
        self._reading.close()
        return self._taken()

    def _taken(self) -> Thought:
        new, self._new = self._new, Thought()
        return new

    # ---- sinks ----

    def _say(self, text: str) -> None:
        self._new.text += text

    def _think(self, text: str) -> None:
        """Add to the thoughts, without white space at their ends."""
        if self.verbatim or self.format.inline:
            self._new.reasoning += text
            return
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        self._new.reasoning += body

    def _mark(self, text: str) -> None:
        if self.verbatim:
            self._new.reasoning += text

    # ---- readings ----

    def _read(self, r: Reader) -> Steps[None]:
        form = self.format
        if form.inline:
            self._say(form.start)
        elif self.opened is not False:
            yield from r.skip_space()
            space = r.data[: r.at]
            found = yield from r.take(form.start)
            if found or self.opened:
                self._mark(space + (found or ""))
                yield from self._thoughts(r)
            else:
                r.at = 0
        r.commit()
        yield from self._rest(r)

    def _thoughts(self, r: Reader) -> Steps[None]:
        form = self.format
        if not self.verbatim:
            yield from r.skip_space()
        end = yield from r.until((form.end, *form.breaks), self._think)
        self._space = ""
        if end is None:
            return
        if end in form.breaks:
            r.at -= len(end)
            return
        self._mark(end)
        begin = r.at
        yield from r.skip_space()
        self._mark(r.data[begin : r.at])

    def _rest(self, r: Reader) -> Steps[None]:
        while True:
            self._say(r.data[r.at :])
            r.at = len(r.data)
            r.commit()
            if r.closed:
                return
            yield

    def _read_harmony(self, r: Reader) -> Steps[None]:
        """Messages of several channels: `analysis` is thought, `final` and comments are the answer; what is meant
        for a tool passes as it stands."""
        yield from r.take("<|start|>assistant")
        while not r.closed or r.at < len(r.data):
            r.commit()
            if not (yield from r.begins("<|channel|>")):
                # Text that follows no header, up to the next one.
                if (yield from r.until(("<|channel|>",), self._say)) is None:
                    return
                r.at -= len("<|channel|>")
            header: list[str] = []
            if (yield from r.until(("<|message|>",), header.append)) is None:
                self._say("".join(header))
                return
            head = "".join(header)
            analysis = head.startswith("<|channel|>analysis") and "to=" not in head
            if "to=" in head:
                self._say(head + "<|message|>")
            elif analysis:
                self._mark(head + "<|message|>")
            if analysis and not self.verbatim:
                yield from r.skip_space()
            sink = self._think if analysis else self._say
            end = yield from r.until(("<|end|>", "<|call|>", "<|return|>"), sink)
            self._space = ""
            if end is None:
                return
            if "to=" in head:
                self._say(end)
            elif analysis:
                self._mark(end)
            begin = r.at
            yield from r.take("<|start|>assistant")
            if analysis:
                self._mark(r.data[begin : r.at])


def parse_reasoning(format: ThinkingFormat, text: str, opened: bool | None = None) -> tuple[str, str]:
    """(thoughts, answer) of a complete text. `opened`: None leaves it to the format."""
    parser = ReasoningParser(format, (True if format.opens else None) if opened is None else opened)
    parts = [parser.feed(text), parser.close()]
    return "".join(p.reasoning for p in parts), "".join(p.text for p in parts)


NAMES = ("auto", "none", *REASONING)
"""what `--reasoning-parser` takes"""
