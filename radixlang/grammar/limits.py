"""What a constraint may cost. Time is counted in work, so that a loaded machine gives the same answers."""

from __future__ import annotations

from dataclasses import dataclass


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
    step_items: int = 100_000
    """parser items of one mask, about 20,000 a millisecond"""
    max_least: int = 1 << 20
    """bytes of the shortest text; no context holds more"""
    max_stretch: int = 2_048
    """bytes that may be forced at once; beyond, nothing is forced and every token is asked for: the library looks
    through all of a forced stretch at each step, four microseconds a byte"""
    max_nested_stretch: int = 256
    """the same for recursive grammars, where a stretch may end as many parts as the text has begun"""
    max_count: int = 1_000_000
    """of one counted repeat; the library unfolds larger ones before it counts its steps"""
