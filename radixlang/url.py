"""URLs of servers: which texts are one. Every client of a server goes by it, before it connects."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from radixlang.errors import ConfigError


def check_url(what: str, url: str) -> SplitResult:
    """The parts of a server's URL without the `/v1` or slash that may end it; it has a host, and a port from 1 to
    65535 or none.

    Raises:
        ConfigError: it is none. The message names the flag or argument `what` and shows how one looks.
    """
    try:
        parts = urlsplit(url)
        # Reading the port checks it; a name that cannot be put into a question to the DNS is no host.
        good = (
            parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
        )
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url or "?" in url or "#" in url:
        raise ConfigError(f"{what} {url!r} is no URL of a server; one looks like http://127.0.0.1:30000.")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"))
