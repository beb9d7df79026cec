"""`/pin`, `/unpin`, `/pins`, and the field `pin` of a request."""

from __future__ import annotations

import pytest

from tests.server.fakes import Live, live

LONG = "a prompt that is longer than a page"


def test_pin_computes_a_prompt_and_names_the_pin(server: Live) -> None:
    pin = server.ok("/pin", {"text": LONG, "ttl": 20, "extra_key": "me"})
    assert set(pin) == {"id", "tokens", "expires"}
    message = server.engine.received[-1]
    assert message.sampling.max_new_tokens == 0
    assert message.pin is not None
    assert (message.pin.name, message.pin.seconds) == (pin["id"], 20.0)
    assert message.namespace == "2:me"
    listed = server.http.get("/pins").json()["pins"]
    assert pin["id"] in [item["id"] for item in listed]
    assert server.ok("/unpin", {"id": [pin["id"], "unknown"]}) == {"unpinned": 1}
    assert server.ok("/unpin", {"id": pin["id"]}) == {"unpinned": 0}


def test_pin_takes_ids_messages_and_a_name(server: Live) -> None:
    assert server.ok("/pin", {"input_ids": list(range(97, 117)), "id": "mine"})["id"] == "mine"
    assert server.engine.received[-1].pin.seconds == 300.0
    server.ok("/pin", {"messages": [{"role": "system", "content": LONG}], "id": "mine"})
    server.ok("/unpin", {"id": "mine"})


def test_a_request_may_leave_a_pin(server: Live) -> None:
    server.ok("/generate", {"text": LONG + "[say:x]", "pin": {"id": "p", "ttl": 5}})
    assert server.engine.received[-1].pin.name == "p"
    server.ok("/unpin", {"id": "p"})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Exactly one of text, input_ids and messages"),
        ({"text": LONG, "input_ids": [1]}, "Exactly one of"),
        ({"text": "short"}, "whole pages of 16"),
        ({"text": LONG, "ttl": 0}, "ttl"),
        ({"text": LONG, "ttl": 3601}, "ttl"),
        ({"text": LONG, "id": ""}, "id"),
    ],
)
def test_refusals(server: Live, body: dict[str, object], words: str) -> None:
    seen = len(server.engine.received)
    assert words in server.refused("/pin", body)["message"]
    assert len(server.engine.received) == seen, "nothing is computed for a pin that is refused"


def test_a_prompt_that_cannot_be_pinned_is_refused_under_a_pin_that_is_there_too() -> None:
    with live(max_pinned_fraction=0.1) as server:
        server.ok("/pin", {"text": LONG, "id": "there"})
        refused = server.refused("/pin", {"text": "short", "id": "there"})
        assert "whole pages of 16" in refused["message"]
        assert refused["param"] == "text"
        most = 25 * 16  # a tenth of 256 pages
        server.ok("/pin", {"input_ids": [97] * (most + 15)})
        refused = server.refused("/pin", {"input_ids": [97] * (most + 16), "id": "there"})
        assert "allows pins 400 together" in refused["message"]


def test_pins_are_listed_to_administrators_and_need_a_cache() -> None:
    with live(admin_api_key="secret", disable_radix_cache=True) as server:
        assert server.http.get("/pins").status_code == 401
        assert "--disable-radix-cache" in server.refused("/pin", {"text": LONG})["message"]
