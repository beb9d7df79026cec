"""The two sides of every constraint: compiled and shared, and one state per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from radixlang.grammar.filling import Filling

if TYPE_CHECKING:
    from radixlang.grammar.limits import GrammarLimits
    from radixlang.grammar.vocabulary import Vocabulary
    from radixlang.messages import GrammarSpec

Mask = npt.NDArray[np.int32]
"""[words] bit i of word w: token 32 w + i is allowed"""


class GrammarState(Protocol):
    """Where one text stands in its grammar. Used by one thread at a time."""

    def fill(self, row: Mask) -> None:
        """Write the tokens that may come next; end tokens exactly where the text may end.

        Raises:
            GrammarFailure: the state is broken, or nothing may follow.
        """
        ...

    def filling(self, row: Mask) -> Filling[None]:
        """`fill`, for `filling.together`."""
        ...

    def ready(self) -> Mask | None:
        """What `fill` would write, where that is known and nothing has to be looked for; not to be written to."""
        ...

    def accept(self, token: int) -> bool:
        """Go on by a token. False, and nothing changed, when it may not stand here. An end token ends the text."""
        ...

    def backtrack(self) -> int:
        """What to do after a refused token → how many accepted tokens have been undone, for nothing could follow
        them. 0: draw again, from a new `fill`.

        Raises:
            GrammarFailure: the text cannot be completed, or the token was not in the last `fill`.
        """
        ...

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` accepted ones."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must follow, up to the first choice; only those that the tokenizer would choose for
        the text whatever follows them. Never an end token. The state stays as it is."""
        ...

    def known(self) -> list[int]:
        """What of `forced` has been worked out already: costs nothing."""
        ...

    def draft(self) -> list[int]:
        """Where bytes must follow and yet no token is `forced`, since one may reach beyond them: how the tokenizer
        cuts these bytes alone, which is likely, and no more. The state stays as it is."""
        ...

    @property
    def can_end(self) -> bool:
        """The text is complete as it stands."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing but the end may follow."""
        ...

    @property
    def revises(self) -> bool:
        """`backtrack` may undo the newest token: neither that nor any after it is final before the text is
        complete. Once true, it stays true."""
        ...

    def copy(self) -> GrammarState:
        """An independent state at the same place."""
        ...

    def ahead(self, tokens: list[int]) -> GrammarState | None:
        """A state behind `tokens`, only to look at: its masks leave nothing out that may follow there, and may
        hold more. None where that is not known."""
        ...


class Grammar(Protocol):
    """A compiled constraint. Immutable; `start` may be called from any thread."""

    @property
    def nbytes(self) -> int:
        """About how much memory it holds."""
        ...

    def start(self) -> GrammarState:
        """The state before the first token."""
        ...


class Engine(Protocol):
    """Compiles constraints for one vocabulary; safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None: ...

    def warm_up(self) -> None:
        """Make what the first compilation would otherwise have to make."""
        ...

    def supports(self, spec: GrammarSpec) -> str | None:
        """None, or why this engine does not take the constraint, in a sentence; cheap."""
        ...

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Raises GrammarError: the constraint is wrong, or beyond the limits."""
        ...
