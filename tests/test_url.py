"""Which texts are URLs of servers."""

from __future__ import annotations

import pytest

from radixlang.errors import ConfigError
from radixlang.url import check_url


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://127.0.0.1:30000", "127.0.0.1", 30000),
        ("http://[::1]:3/v1", "::1", 3),
        ("https://A_b.example./v1/", "a_b.example.", None),
        ("http://user:word@host:1", "host", 1),
    ],
)
def test_urls_of_servers(url: str, host: str, port: int | None) -> None:
    parts = check_url("--url", url)
    assert (parts.hostname, parts.port) == (host, port)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:1", "http://a:1"),
        ("http://a:1/", "http://a:1"),
        ("http://a:1/v1", "http://a:1"),
        ("https://a/llm/v1/", "https://a/llm"),
        ("http://v1", "http://v1"),
        ("http://[::1]:3/v1", "http://[::1]:3"),
    ],
)
def test_what_openai_clients_write_behind_it_is_left_out(url: str, base: str) -> None:
    assert check_url("--url", url).geturl() == base


@pytest.mark.parametrize(
    "url",
    [
        *("", "notaurl", "localhost:30000", "ftp://x", "http://", "http:///x", "http://:80", "http://[::1"),
        *("http://a:x", "http://a:99999", "http://a:0", "http://a b", "http://a\nb", "http://a..b"),
        *("http://a/?b=c", "http://a/#b", "http://" + "a" * 64),
    ],
)
def test_what_is_none(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--url .* is no URL of a server; one looks like http://127\.0\.0\.1:30000\.$"
    ):
        check_url("--url", url)
