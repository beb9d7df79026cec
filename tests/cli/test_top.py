"""`radixlang top`: the same numbers in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from radixlang.cli import top
from radixlang.cli.main import main
from radixlang.server.stream import namespace_of
from tests.server.fakes import Live, live
from tests.server.test_looking import fill


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(api_key="k") as running:
        fill(running.engine, "A prompt that is [bold]long[/bold]\x1b[31m enough", "of a tenant, who")
        fill(running.engine, "of one who plays", namespace=namespace_of("\x1b[31m\u202etenant" + "k" * 1000, None))
        running.http.headers["authorization"] = "Bearer k"
        running.ok("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 20}})
        yield running


def drawn(picture: Any) -> str:
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(picture)
    return console.export_text()


def test_one_frame_has_figures_latencies_and_the_tree(server: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", server.base + "/v1", "--api-key", "k", "--once"]) == 0
    text = capsys.readouterr().out
    assert "fake/model" in text
    assert "prefix cache: 3 runs" in text
    assert "·[31m·tenantkkk" in text
    assert "\u202e" not in text
    assert "default namespace" in text
    assert "A prompt that is [bold]l" in text
    assert "20   tokens" in text
    assert "first token" in text
    assert "\x1b[31m" not in text


def test_without_the_key_figures_remain(server: Live) -> None:
    watched = top.Watched(server.base)
    text = drawn(next(top.frames(watched, 1.0, 5)))
    assert "/cache_tree needs the server's key" in text
    assert "answered" in text
    watched.close()


def test_it_waits_for_a_server_that_goes_away() -> None:
    """And begins anew with the one that comes back, which may be another."""
    import httpx

    here = {"name": "first", "made": 100.0, "status": 200}

    def answer(request: httpx.Request) -> httpx.Response:
        if not here:
            raise httpx.ConnectError("refused")
        if request.url.path == "/metrics":
            text = f"# TYPE sglang:generation_tokens counter\nsglang:generation_tokens_total {here['made']}\n"
            return httpx.Response(here["status"], text=text)
        return httpx.Response(200, json={"served_model_name": here["name"], "running": [], "num_running": 0})

    watched = top.Watched("http://other", transport=httpx.MockTransport(answer))
    pictures = top.frames(watched, 0.0, 0)
    assert "made      100" in drawn(next(pictures))
    states = ({}, {"name": "second", "made": 7.0, "status": 503}, {"name": "second", "made": 7.0, "status": 200})
    away, still_away, back = [], [], []
    for state, texts in zip(states, (away, still_away, back), strict=True):
        here.clear()
        here.update(state)
        texts += [drawn(next(pictures)) for _ in range(2)]
    assert all("Nothing since" in text and "refused" in text and "made      100" in text for text in away)
    assert all("Nothing since" in text and "status 503" in text for text in still_away)
    assert away[0].split(":")[:3] == still_away[1].split(":")[:3]  # since when does not move
    assert all("Nothing" not in text and "second" in text and "made      7 " in text for text in back)


def test_a_restart_between_two_frames_begins_anew() -> None:
    one, two = (top.Metrics.parse(f"sglang:num_requests_total {count}.0\n") for count in (5, 3))
    assert one.follows(two)
    assert not two.follows(one)


@pytest.mark.parametrize("terminal", [True, False])
def test_interrupting_it_is_a_good_end(
    server: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    written: list[str] = []

    def interrupted(seconds: float) -> None:
        written.append(capsys.readouterr().out)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", interrupted)
    monkeypatch.setattr(Console, "is_terminal", property(lambda console: terminal))
    assert main(["top", "--url", server.base, "--api-key", "k"]) == 0
    assert all("fake/model" in text for text in written)  # a frame is there when it is drawn, in a file too


def test_quantiles_are_those_of_what_is_new() -> None:
    def reading(fast: int, slow: int) -> top.Metrics:
        lines = [
            f'sglang:time_to_first_token_seconds_bucket{{is_streaming="{flag}",le="{bound}"}} {count}'
            for flag in ("true", "false")
            for bound, count in (("0.1", fast), ("0.2", fast), ("1.0", fast + slow), ("+Inf", fast + slow))
        ]
        return top.Metrics.parse("# TYPE sglang:time_to_first_token_seconds histogram\n" + "\n".join(lines) + "\n")

    name = "time_to_first_token_seconds"
    first, second = reading(10, 0), reading(10, 10)
    assert first.quantiles(name, top.Metrics(), [0.5]) == [pytest.approx(0.05)]
    assert second.quantiles(name, first, [0.5, 1.0]) == [pytest.approx(0.6), pytest.approx(1.0)]
    assert second.quantiles(name, second, [0.5]) == [pytest.approx(0.1)]  # nothing new: ever
    assert first.quantiles("unknown", first, [0.5]) is None


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--interval", "0"], "--interval must be"),
        (["--runs", "-1"], "--runs must be"),
        (["--url", "http://127.0.0.1:9", "--once"], "No server answers"),
        (
            ["--url", "notaurl", "--once"],
            "--url 'notaurl' is no URL of a server; one looks like http://127.0.0.1:30000",
        ),
        (["--api-key", "a\nb", "--once"], "--api-key must be one line"),
        (["--admin-api-key", " a", "--once"], "--admin-api-key must be one line"),
    ],
)
def test_it_says_what_is_wrong(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *argv]) in (1, 2)
    assert said in capsys.readouterr().err


def test_any_server_with_metrics_will_do() -> None:
    import httpx

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text='sglang:num_running_reqs{model_name="x"} 3.0\n')
        assert request.headers.raw[-1] == (b"Authorization", "Bearer schlüssel".encode())
        # What stands before a server may answer everything with a page of its own.
        pages = {"/cache_tree": httpx.Response(200, text="<html>"), "/requests": httpx.Response(200, json=[1])}
        return pages.get(request.url.path, httpx.Response(404, json={}))

    watched = top.Watched("http://other", "schlüssel", transport=httpx.MockTransport(answer))
    text = drawn(next(top.frames(watched, 1.0, 5)))
    assert "running" in text
    assert "/cache_tree not served (status 200)" in text
