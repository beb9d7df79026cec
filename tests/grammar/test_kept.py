"""Results are kept by the size of what they were made of."""

from __future__ import annotations

import pytest

from radixlang.grammar.kept import kept


def test_many_short_and_few_long_ones_are_kept() -> None:
    made: list[str] = []

    @kept(many=3, short=2, few=1)
    def double(text: str, more: str = "") -> str:
        """What it does."""
        made.append(text)
        return text + text + more

    for text in ("a", "bb", "c", "a", "long", "long", "longer", "long"):
        assert double(text) == text + text
    assert made == ["a", "bb", "c", "long", "longer", "long"]
    assert double("a", more="!") == "aa!"
    assert double.__doc__ == "What it does."


def test_errors_are_not_kept() -> None:
    asked: list[int] = []

    @kept(many=3, short=10, size=lambda number: number)
    def fail_once(number: int) -> int:
        asked.append(number)
        if len(asked) == 1:
            raise ValueError("once")
        return number

    with pytest.raises(ValueError, match="once"):
        fail_once(7)
    assert fail_once(7) == fail_once(7) == 7
    assert asked == [7, 7]
