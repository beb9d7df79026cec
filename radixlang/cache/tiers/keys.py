"""Names of pages by what is in them: a chain of hashes.

    key(page 0) = H(H(identity, namespace) + tokens of page 0)
    key(page i) = H(key(page i - 1) + tokens of page i)

So a key stands for the whole prefix up to its page's end, and for everything else that decides which bytes lie in
the page: `identity` says model, layout and arithmetic. Equal keys, equal bytes; on any server. H is BLAKE2b
(RFC 7693) of 16 bytes. Must not know where pages lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from radixlang.plan import Ints

KEY_BYTES = 16


class Link(NamedTuple):
    """A key, and the one before it in its prefix, if it is not the first."""

    key: bytes
    before: Link | None
    depth: int
    """keys before it"""

    @classmethod
    def after(cls, before: Link | None, key: bytes) -> Link:
        return cls(key, before, before.depth + 1 if before is not None else 0)

    def behind(self) -> list[bytes]:
        """The keys before this one, from the first on."""
        keys, link = [], self.before
        while link is not None:
            keys.append(link.key)
            link = link.before
        return keys[::-1]


def runs(links: Iterable[Link]) -> list[tuple[list[bytes], list[bytes]]]:
    """(the keys before it, its own) of each run of neighbours among `links`, which come in the order of their
    prefixes."""
    ending: dict[bytes, list[bytes]] = {}
    found = []
    for link in links:
        run = ending.pop(link.before.key, None) if link.before is not None else None
        if run is None:
            run = []
            found.append((link.behind(), run))
        run.append(link.key)
        ending[link.key] = run
    return found


def first_key(identity: bytes, namespace: str) -> bytes:
    """What the chain of a namespace begins with."""
    return blake2b(namespace.encode(), digest_size=KEY_BYTES, key=identity[:64]).digest()


def page_keys(before: bytes, tokens: Ints, page_size: int) -> list[bytes]:
    """The keys of the full pages of `tokens`, which follow the page (or the start) that `before` names."""
    data = np.ascontiguousarray(tokens, "<i4").tobytes()
    step = 4 * page_size
    keys = []
    fresh = blake2b(digest_size=KEY_BYTES).copy  # a third cheaper than a new one for every page
    for at in range(0, len(data) - step + 1, step):
        page = fresh()
        page.update(before)
        page.update(data[at : at + step])
        before = page.digest()
        keys.append(before)
    return keys
