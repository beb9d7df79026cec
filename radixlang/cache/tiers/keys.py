"""Names of pages by what is in them: a chain of hashes.

    key(page 0) = H(H(identity, namespace) + tokens of page 0)
    key(page i) = H(key(page i - 1) + tokens of page i)

So a key stands for the whole prefix up to its page's end, and for everything else that decides which bytes lie in
the page: `identity` says model, layout and arithmetic. Equal keys, equal bytes; on any server. H is BLAKE2b
(RFC 7693) of 16 bytes. Must not know where pages lie.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from radixlang.plan import Ints

KEY_BYTES = 16


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
