"""Keys of a server: which texts can be one, and the header in which clients send it.

Must not know servers or clients: both sides go by it.
"""

from __future__ import annotations

from radixlang.errors import ConfigError


def check_key(what: str, key: str) -> None:
    """A key must survive the way through a header, whose ends are trimmed and which is one line.

    Raises:
        ConfigError: it cannot. The message names the flag or argument `what`, and not the key.
    """
    if not key or key != key.strip() or not key.isprintable():
        raise ConfigError(f"{what} must be one line of printable characters without white space at its ends.")


def bearer(key: str | None, what: str = "--api-key") -> dict[bytes, bytes]:
    """The header for `key`, in UTF-8 as our server compares it; none without a key.

    Raises:
        ConfigError: no header can hold it.
    """
    if key is None or key == "":
        return {}
    check_key(what, key)
    return {b"Authorization": f"Bearer {key}".encode()}
