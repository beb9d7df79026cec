"""Stop strings and stop expressions in text that arrives piece by piece.

The rule: text is read character by character, and the first character with which any stop is complete ends it.
If several stops are complete with that character, the one that begins first wins, then strings before expressions,
then the order given. So the outcome does not depend on how the text was cut into pieces. Must not know tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixlang.text.stop_regex import compile_stop_regexes


class StopMatcher:
    """Watches one text; afterwards `matched` is the stop string or expression that ended it, or None.

    Text that may be the beginning of a stop is held back, and everything else is let through at once. The text
    ends before the match, or behind it with `no_stop_trim`. Raises RequestError for an expression that cannot
    be used.
    """

    def __init__(
        self, stop: Iterable[str] = (), stop_regex: Iterable[str] = (), no_stop_trim: bool = False
    ) -> None:
        self._strings = [one for one in dict.fromkeys(stop) if one]
        self._scanners = {pattern: one.scanner() for pattern, one in compile_stop_regexes(stop_regex).items()}
        self._keep = no_stop_trim
        self._held = ""  # read, not yet let through
        self._at = 0  # characters read before `_held`
        self.matched: str | None = None

    def push(self, text: str, may_match: bool = True) -> tuple[str, str | None]:
        """Reads `text`; returns (text that is let through, the stop that is now complete or None).

        With `may_match=False` a stop that is complete within this piece is passed over. After a match nothing
        more is let through.
        """
        if self.matched is not None:
            return "", self.matched
        read = len(self._held)
        whole = self._held + text
        found = self._find(whole, read, may_match)
        if found is not None:
            start, end, self.matched = found
            self._held = ""
            return whole[: end if self._keep else start], self.matched
        keep = self._held_from(whole)
        self._held = whole[keep:]
        self._at += keep
        return whole[:keep], None

    def finish(self) -> str:
        """What was held back, when the text has ended without a match."""
        rest, self._held = self._held, ""
        return rest

    def _find(self, whole: str, read: int, may_match: bool) -> tuple[int, int, str] | None:
        """(start, end, stop) of the match that wins, as positions in `whole`; `read` of it was read before."""
        best: tuple[int, int, str] | None = None
        if may_match:
            for stop in self._strings:
                start = whole.find(stop, max(0, read - len(stop) + 1))
                if start >= 0 and (best is None or (start + len(stop), start) < (best[1], best[0])):
                    best = start, start + len(stop), stop
        if self._scanners:
            for position in range(read, len(whole) if best is None else best[1]):
                for pattern, scanner in self._scanners.items():
                    began = scanner.step(whole[position])
                    if began is None or not may_match:
                        continue
                    start, end = max(0, began - self._at), position + 1
                    if best is None or (end, start) < (best[1], best[0]):
                        best = start, end, pattern
                if best is not None and best[1] == position + 1:
                    break
        return best

    def _held_from(self, whole: str) -> int:
        """Where the tail begins that may become a stop."""
        keep = len(whole)
        for stop in self._strings:
            for start in range(max(0, len(whole) - len(stop) + 1), keep):
                if stop.startswith(whole[start:]):
                    keep = start
                    break
        for scanner in self._scanners.values():
            keep = min(keep, max(0, scanner.held_from - self._at))
        return keep
