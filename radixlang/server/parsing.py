"""Which parsers this server has, and what they need of the tokenizer. Must not know HTTP."""

from __future__ import annotations

from typing import Any

from radixlang.config import ServerConfig
from radixlang.log import get_logger
from radixlang.parsers.reasoning import ThinkingFormat, find_reasoning
from radixlang.parsers.tools import Syntax, find_syntax

log = get_logger(__name__)


class Parsers:
    """`reasoning` and `syntax` as the options or the chat template name them; None where there are none.

    Raises:
        ConfigError: an option names a parser that there is not.
    """

    def __init__(self, config: ServerConfig, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        source = getattr(tokenizer, "chat_template", None)
        self.reasoning: ThinkingFormat | None = find_reasoning(config.reasoning_parser, source)
        found = find_syntax(config.tool_call_parser, getattr(tokenizer, "tool_template", None) or source)
        self.syntax_name: str | None = found[0] if found else None
        self.syntax: Syntax | None = found[1] if found else None
        names = [tokenizer.id_to_token(index) for index in getattr(tokenizer, "special_ids", ())]
        self._special = [name for name in names if name]
        if self.reasoning or self.syntax_name:
            name = self.reasoning.name if self.reasoning else None
            log.info("reasoning parser %s, tool-call parser %s", name, self.syntax_name)

    def end_ids(self, format: ThinkingFormat, forced: bool = False) -> tuple[int, ...]:
        """The tokens that end thoughts. `forced`: as they are written for a model that does not end them."""
        text = format.end if forced or not format.answer_start else format.answer_start
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def start_id(self, format: ThinkingFormat) -> int | None:
        """The token that tells that thoughts begin; None where it takes several."""
        ids = self._tokenizer.encode(format.start, add_special_tokens=False)
        alone = len(ids) == 1 or ids[0] in getattr(self._tokenizer, "special_ids", ())
        return ids[0] if alone else None

    def need_special(self, reasoning: ThinkingFormat | None, syntax: Syntax | None) -> bool:
        """Whether the marks of these are special tokens, which texts show only when asked to."""
        marks = [*((reasoning.start, reasoning.end) if reasoning else ()), *(syntax.triggers if syntax else ())]
        return any(name in mark for mark in marks for name in self._special)
