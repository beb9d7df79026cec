"""The port, before and after anything is served on it."""

from __future__ import annotations

import socket

import pytest

from radixlang.errors import ConfigError
from radixlang.launch import check_port, open_port

HOST = "127.0.0.1"


def test_a_port_is_taken_while_its_server_loads_and_free_when_it_has_gone() -> None:
    first = check_port(HOST, 0)
    port = first.getsockname()[1]
    for opened in (False, True):
        if opened:
            open_port(first)
        with pytest.raises(ConfigError, match="choose another --port"):
            check_port(HOST, port)
    with socket.create_connection((HOST, port)) as client:
        served, _ = first.accept()
        served.close()  # the server's side closes first, so that the port lingers
        client.recv(1)
    first.close()
    second = check_port(HOST, port)
    open_port(second)
    second.close()
