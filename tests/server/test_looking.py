"""`/cache_tree`, `/requests` and `/ui`: what they tell, to whom, and how seldom the engine is asked."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from typing import Any

import httpx
import numpy as np
import pytest

from radixlang.server.looking import KEPT
from radixlang.server.stream import namespace_of, namespace_parts
from tests.server.fakes import FakeEngine, Live, live

PROMPT = "A secret prompt of somebody else."


def fill(engine: FakeEngine, *texts: str, namespace: str = "") -> None:
    """Put texts into the tree that the fake engine shows (pages of 16 bytes)."""
    for text in texts:
        tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        first, count = engine.tree.total + 1, len(tokens) // engine.tree.page_size
        engine.tree.insert(tokens, np.arange(first, first + count, dtype=np.int32), namespace)


@pytest.fixture(scope="module")
def shown() -> Any:
    with live() as server:
        fill(server.engine, PROMPT, PROMPT[:16] + "and another end ", "x" * 400)
        fill(server.engine, "of a tenant, who", namespace=namespace_of("tenant", "salty secret"))
        yield server


def test_the_tree_is_told_with_texts(shown: Live) -> None:
    view = shown.http.get("/cache_tree", params={"namespace": ""}).json()
    assert (view["page_size"], view["nodes"], view["texts"]) == (16, 5, True)
    runs = view["runs"]
    assert runs[0]["namespace"] == ""
    assert {run["text"] for run in runs[1:]} == {
        PROMPT[:16],
        PROMPT[16:32],
        "and another end ",
        "x" * 32,
    }
    shared = next(run for run in runs if run.get("text") == PROMPT[:16])
    assert (shared["tokens"], shared["pages"], shared["children"], shared["more"]) == (16, 1, 2, 0)
    assert "namespace" not in shared
    below = shown.http.get("/cache_tree", params={"node": f"{runs[0]['id']}/{shared['id']}", "limit": 2}).json()
    assert [run["more"] for run in below["runs"]] == [1, 0]
    long = next(run for run in runs if run.get("text") == "x" * 32)
    whole = shown.http.get(
        "/cache_tree", params={"node": f"{runs[0]['id']}/{long['id']}", "head": 2048}
    ).status_code
    assert whole == 400  # 300 times 2048
    whole = shown.http.get(f"/cache_tree?limit=1&head=2048&node={runs[0]['id']}/{long['id']}").json()
    assert whole["runs"][0]["text"] == "x" * 400


def test_salts_are_secrets(shown: Live) -> None:
    text = shown.http.get("/cache_tree").text
    assert re.search(r'"namespace":"tenant#[0-9a-f]{8}"', text)
    assert "salty" not in text


def test_long_names_are_cut() -> None:
    with live() as server:
        fill(server.engine, PROMPT, namespace=namespace_of("k" * 10_000, "salt"))
        name = server.http.get("/cache_tree").json()["runs"][0]["namespace"]
        assert name.startswith("k" * 63 + "…#")
        assert server.http.get("/cache_tree", params={"namespace": "k" * 10_000}).json()["runs"] == []


@pytest.mark.parametrize("pair", [("", "s"), ("k", ""), ("3:k", "1:s"), ("", "")])
def test_namespaces_are_taken_apart(pair: tuple[str, str]) -> None:
    assert namespace_parts(namespace_of(*pair)) == pair


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=2001", "limit"),
        ("limit=²", "limit"),
        ("head=-1", "head"),
        ("order=best", "order"),
        ("node=1//2", "node"),
        ("node=1.5", "node"),
    ],
)
def test_bad_questions_are_refused(shown: Live, query: str, param: str) -> None:
    reply = shown.http.get(f"/cache_tree?{query}")
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["message"].startswith(param)
    assert error["param"] == param


def test_what_is_gone_is_a_404(shown: Live) -> None:
    reply = shown.http.get("/cache_tree?node=99999/1")
    assert reply.status_code == 404
    assert "not there any more" in reply.json()["error"]["message"]


def test_without_a_key_texts_stay_on_this_machine_and_this_site(shown: Live) -> None:
    def texts(**headers: str) -> bool:
        view = shown.http.get("/cache_tree", headers={k.replace("_", "-"): v for k, v in headers.items()}).json()
        assert view["nodes"] == 5
        assert any("text" in run for run in view["runs"]) == view["texts"]
        return bool(view["texts"])

    assert texts()
    assert texts(origin=shown.base)
    assert texts(host="localhost:30000")
    assert texts(host="[::1]:30000")
    assert not texts(host="[")
    assert not texts(origin="https://elsewhere.example")
    assert not texts(origin="null")
    assert not texts(x_forwarded_for="10.0.0.9")
    assert not texts(host="rebound.example:30000")


def test_keys_open_the_tree_from_anywhere_and_the_page_needs_none() -> None:
    with live(api_key="k", admin_api_key="a") as server:
        fill(server.engine, PROMPT)
        far = {"host": "public.example", "x-forwarded-for": "10.0.0.9"}

        def get(path: str, key: str) -> httpx.Response:
            return server.http.get(path, headers={**far, "authorization": f"Bearer {key}"})

        for path in ("/cache_tree", "/requests"):
            assert server.http.get(path).status_code == 401
            assert get(path, "k").status_code == 401
            assert get(path, "a").status_code == 200
        assert PROMPT[:16] in get("/cache_tree", "a").text
        page = server.http.get("/ui", headers=far)
        assert page.status_code == 200
        assert server.http.get("/ui/", follow_redirects=True).text == page.text
        assert server.http.get("/uix").status_code == 401


def test_the_page_holds_all_it_needs_and_may_do_no_more(shown: Live) -> None:
    page = shown.http.get("/ui")
    policy = page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"""(src|href|action)=["'](?!data:)""", page.text)
    assert "innerHTML" not in page.text
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page.text, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy


def test_many_onlookers_are_one_to_the_engine(shown: Live) -> None:
    before = shown.engine.looks
    replies: list[int] = []

    def look() -> None:
        replies.append(httpx.get(f"{shown.base}/cache_tree?limit=7", trust_env=False).status_code)

    threads = [threading.Thread(target=look) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [200] * 12
    assert shown.engine.looks - before <= 2 + 1 / KEPT


def test_requests_are_told_without_texts() -> None:
    with live(engine=FakeEngine(delay=0.05)) as server:
        body = {"text": "[wait]", "rid": "late", "sampling_params": {"max_new_tokens": 5}}
        with pytest.raises(httpx.ReadTimeout):  # a client that leaves
            server.http.post("/generate", json=body, timeout=0.2)
        server.until(lambda: server.engine.aborts)
        thread = threading.Thread(target=lambda: server.post("/generate", body))
        thread.start()
        server.until(lambda: server.engine.waiting)
        assert "late" not in server.engine.waiting  # which late messages for the first one would reach
        view = server.http.get("/requests").json()
        assert (view["num_running"], view["num_waiting"]) == (0, 1)
        assert view["waiting"][0]["rid"] == "late"
        assert 0 <= view["time"] - view["waiting"][0]["received"] < 20
        server.post("/abort_request", {"rid": "late"})
        thread.join(10)


def test_a_server_without_a_tokenizer_shows_ids() -> None:
    with live(tokenizer=False, skip_tokenizer_init=True) as server:
        fill(server.engine, "0123456789abcdef")
        runs = server.http.get("/cache_tree?head=3").json()["runs"]
        assert runs[-1]["text"] == "48 49 50"
