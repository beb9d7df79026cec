"""What a constraint may cost. Time is counted in work, so that a loaded machine gives the same answers."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PATTERN = 100_000
"""characters of one regular expression, which several parsers read, 9 to 15 microseconds a character together; ten
thousand words fit"""


def too_long(pattern: str) -> str | None:
    """What is wrong with an expression of more than MAX_PATTERN characters."""
    if len(pattern) <= MAX_PATTERN:
        return None
    return f"it has {len(pattern):,} characters, and at most {MAX_PATTERN:,} can be held; make it shorter"


@dataclass(frozen=True)
class GrammarLimits:
    """Bounds of one compilation and of one step."""

    max_states: int = 2_500
    """states of one automaton"""
    max_grammar_size: int = 500_000
    """symbols of one context-free grammar"""
    lexer_states: int = 50_000
    compile_fuel: int = 500_000
    """steps of the construction of a context-free grammar's lexer, 500 to 50,000 a millisecond; nested counted
    repeats are the slow ones, and hold 150 bytes a step"""
    step_fuel: int = 500_000
    """the same for one mask, about 14,000 a millisecond"""
    max_rules: int = 1_000
    """rules of one GBNF grammar, whose translation takes a microsecond for each pair of rules"""
    row_items: int = 20_000
    """parser items at one byte; an object has a few for each of its optional properties"""
    own_row_items: int = 800
    """the same in grammars of users, which may be ambiguous: what can be read in ever more ways (`e ::= e op e`)
    has ever more items, and a mask takes up to the square of their number, 30 ms at this bound, which is 400 to
    1,500 bytes of such a text"""
    step_items: int = 100_000
    """parser items of one mask, about 20,000 a millisecond"""
    max_least: int = 1 << 20
    """bytes of the shortest text; no context holds more"""
    max_stretch: int = 2_048
    """bytes that may be forced at once; beyond, nothing is forced and every token is asked for: the library looks
    through all of a forced stretch at each step, four microseconds a byte"""
    max_nested_stretch: int = 256
    """the same for recursive grammars, where a stretch may end as many parts as the text has begun"""
    max_optional: int = 1_000
    """parts of an expression in a row that may each be left out (`a?b*`): the library's time is their square, half
    a second here"""
    max_count: int = 1_000_000
    """of one counted repeat; the library unfolds larger ones before it counts its steps"""
