"""JSON schemas made ready for a grammar: rewritten into what the grammar library states exactly, or refused.

`normalise` reads a schema of any draft, compiles it to shapes and writes it down again. Keywords that no grammar
states are left out of the result and named in `Normalised.residual`; grammar/residual.py checks those while the
text is generated. Pure host code: must not know tokens, requests or the grammar library.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.kept import kept
from radixlang.grammar.schema.compile import Compiler
from radixlang.grammar.schema.document import Document, Node, children
from radixlang.grammar.schema.emit import Emitter
from radixlang.grammar.schema.obligations import Obligations
from radixlang.grammar.spec import read_json
from radixlang.log import get_logger

log = get_logger(__name__)

MAX_SHORT = 1 << 15
"""characters of a schema of which many are kept"""

__all__ = ["Normalised", "Obligations", "Residual", "check_all", "find_keyword", "normalise", "normalise_text"]


class Residual(NamedTuple):
    """A keyword that the rewritten schema does not state: where it stands in the original, and its subschema."""

    pointer: str
    keyword: str
    schema: Any


class Normalised(NamedTuple):
    """`schema` allows every value of the original; exactly those where `residual` is empty.

    `checks` says which values to validate while they are generated; None where nothing is left to check.
    `looks`: patterns of `schema` look around, which our own automata alone follow.
    """

    schema: Any
    residual: tuple[Residual, ...]
    warnings: tuple[str, ...]
    checks: Obligations | None
    looks: bool = False

    @property
    def places(self) -> list[tuple[str, str | None]]:
        """Pointers and keywords of the residual."""
        return [(each.pointer, each.keyword) for each in self.residual]


def normalise(schema: Any, patterns: bool = True, looks: bool = False) -> Normalised:
    """Rewrite a JSON schema (draft 4, 6, 7, 2019-09 or 2020-12) for the grammar library, or with `looks` for
    automata that follow patterns which look around.

    Key order, and so the order in which properties are generated, is that of the schema. Without `patterns` what
    strings and keys must match is left to the check: for schemas whose patterns the library does not compare.

    Raises:
        GrammarError: malformed, too large, dangling references, or no finite value; names pointer and keyword.
    """
    document = Document(schema)
    compiler = Compiler(document, looks)
    emitter = Emitter(compiler, patterns)
    try:
        written = emitter.write(compiler.state(document.root))
    except RecursionError:
        raise GrammarError(
            "its references are nested too deeply, or one leads back to itself; shorten the chain of $ref.",
            pointer="",
        ) from None
    nodes: dict[Node, None] = dict.fromkeys(node for node, _ in emitter.notes)
    residual = tuple(Residual(node.pointer, keyword, node.schema) for node, keyword in emitter.notes)
    checks = Obligations(compiler, nodes) if residual else None
    return Normalised(written, residual, tuple(compiler.warnings), checks, compiler.looked)


def normalise_text(text: str, looks: bool = False) -> Normalised:
    """`normalise` of a JSON text; the last ones are kept, for one backend after another asks for the same.

    Raises:
        GrammarError: as `normalise`, and where the text is no JSON.
    """
    normalised = _normalised(text)
    return normalised if looks or not normalised.looks else _without_looks(text)


@kept(many=64, short=MAX_SHORT)
def _normalised(text: str) -> Normalised:
    normalised = normalise(read_json(text, "json_schema"), looks=True)
    for warning in normalised.warnings:
        log.info("a JSON schema was given a keyword without effect: %s", warning)
    return normalised


@kept(many=64, short=MAX_SHORT)
def _without_looks(text: str) -> Normalised:
    return normalise(read_json(text, "json_schema"))


def check_all(schema: Any) -> Obligations:
    """Every value is validated against every subschema that surely applies to it: for engines that state less than
    `Normalised.schema` says.

    Raises:
        GrammarError: as `normalise` does.
    """
    document = Document(schema)
    return Obligations(Compiler(document), _subschemas(document))


def find_keyword(schema: Any, *keywords: str) -> tuple[str, str | None]:
    """Where a schema has one of the keywords first: pointer and keyword, `("", None)` if it has none."""
    for node in _subschemas(Document(schema)):
        for keyword in keywords:
            if keyword in node.schema:
                return node.pointer, keyword
    return "", None


def _subschemas(document: Document) -> list[Node]:
    """All that are no mere true or false, in their order."""
    found: dict[Node, None] = {}
    todo = [document.root]
    while todo:
        node = todo.pop()
        if isinstance(node.schema, dict) and node not in found:
            found[node] = None
            todo.extend(reversed(list(children(node))))
    return list(found)
