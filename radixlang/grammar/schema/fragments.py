"""Parts of a schema as it is written, with places for the schemas of child values.

Must not know how terms are written (write_scalars.py, write_arrays.py, write_objects.py) or how parts are put
together (emit.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from radixlang.grammar.schema.compile import Compiler
from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.terms import Note, Notes, State


class Child(NamedTuple):
    """A child value's place in a fragment."""

    state: State


class Fault(NamedTuple):
    """Why a state has no value: the keyword of a subschema, and a sentence."""

    node: Node
    keyword: str | None
    sentence: str


class Places(NamedTuple):
    """`least` items of an array must be of `states`, each of which so many items may be; `note` says where."""

    least: int
    states: tuple[tuple[State, int], ...]
    note: Note


class Fragment(NamedTuple):
    """One alternative of a state: a schema with `Child`ren in it; `needs` are those that every value has, of each
    of `places` it has some.
    """

    schema: dict[str, Any]
    needs: tuple[State, ...] = ()
    children: tuple[State, ...] = ()
    notes: Notes = ()
    places: tuple[Places, ...] = ()


class Writing:
    """What is kept while the states of one compiler are written."""

    def __init__(self, compiler: Compiler, patterns: bool) -> None:
        self.compiler = compiler
        self.patterns = patterns
        """whether patterns are written, or left to the check"""
        self.fault: Fault | None = None
        """of the state that is being written, where it is plain"""
        self.optional_pairs = 0
        """of optional properties of an object, over all objects so far"""


def losses(origins: tuple[Node, ...], *keywords: str) -> Notes:
    """Notes for keywords that cannot be written, at the subschemas that have them."""
    found = tuple((node, key) for node in origins for key in keywords if key in node.schema)
    return found or tuple((node, next(iter(node.schema))) for node in origins)
