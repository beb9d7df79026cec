"""Splitting what a model thought from what it answered, in a finished text."""

from __future__ import annotations

#: name of the syntax → (opening, closing, whether thinking is open from the first token)
SYNTAXES: dict[str, tuple[str, str, bool]] = {
    "deepseek-r1": ("<think>", "</think>", True),
    "deepseek-v3": ("<think>", "</think>", False),
    "glm45": ("<think>", "</think>", False),
    "interns1": ("<think>", "</think>", False),
    "kimi": ("◁think▷", "◁/think▷", False),
    "kimi_k2": ("<think>", "</think>", False),
    "mimo": ("<think>", "</think>", False),
    "minimax": ("<think>", "</think>", True),
    "mistral": ("[THINK]", "[/THINK]", False),
    "nemotron_3": ("<think>", "</think>", False),
    "qwen3": ("<think>", "</think>", False),
    "qwen3-thinking": ("<think>", "</think>", True),
    "step3": ("<think>", "</think>", True),
}


def split_reasoning(text: str, syntax: str | None) -> tuple[str, str]:
    """(reasoning, answer) of `text`; `syntax` None means `<think>` tags. Without tags all is answer, except where
    the syntax begins with thinking: then a text without the closing tag is all reasoning.

    Raises:
        ValueError: an unknown syntax; the message lists the known ones.
    """
    known = SYNTAXES.get(syntax or "qwen3")
    if known is None:
        raise ValueError(f"There is no reasoning syntax {syntax!r}; there are {', '.join(sorted(SYNTAXES))}.")
    opening, closing, open_from_start = known
    before, opened, rest = text.partition(opening)
    if not opened:
        if not open_from_start and closing not in text:
            return "", text
        before, rest = "", text
    reasoning, _, answer = rest.partition(closing)
    return reasoning.strip(), (before + answer).lstrip() if not before.strip() else before + answer
