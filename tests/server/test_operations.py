"""Health, information, control, metrics, keys, CORS, errors and disconnects of the HTTP server."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixlang.log import LineFormat
from radixlang.messages import Dead
from radixlang.scheduler.stats import Totals
from radixlang.server import metrics

from .fakes import FakeEngine, Live, live


def samples(server: Live) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The metrics page, parsed: name → labels → value; checks HELP, TYPE and names."""
    response = server.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    out: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(response.text):
        assert family.name.startswith("sglang:")
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            out.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return out


def total(page: dict[str, Any], name: str) -> float:
    return sum(page["sglang:" + name].values())


# ---- health and information ----


def test_health_and_readiness(server: Live) -> None:
    for path in ("/health", "/ready", "/health_generate"):
        assert server.http.get(path).status_code == 200


def test_health_generate_fails_when_the_engine_is_silent() -> None:
    engine = FakeEngine()
    with live(engine=engine, health_timeout=0.2) as server:
        engine.send = lambda message: None  # type: ignore[method-assign]
        server.hub._send = engine.send
        response = server.http.get("/health_generate")
        assert response.status_code == 503
        assert "0.2 s" in response.json()["error"]["message"]
        assert server.http.get("/health").status_code == 200
        assert server.hub.running == 0


def test_probes_count_in_no_metric(server: Live) -> None:
    before = total(samples(server), "num_requests_total")
    server.http.get("/health_generate")
    assert server.engine.received[-1].rid.startswith("HEALTH_CHECK_")
    assert total(samples(server), "num_requests_total") == before


def test_a_dead_engine_fails_everything_with_503() -> None:
    with live() as server:
        answers = []
        body = {"text": "[wait]"}
        threads = [
            threading.Thread(target=lambda s=s: answers.append(server.post("/generate", {**body, "stream": s})))
            for s in (False, True)
        ]
        for thread in threads:
            thread.start()
        server.until(lambda: len(server.engine.waiting) == 2)
        server.on_loop(lambda: server.hub.dispatch([Dead("engine", "out of memory", "trace")]))
        for thread in threads:
            thread.join(5)
        assert [a.status_code for a in answers] == [503, 503]
        assert "out of memory" in answers[0].json()["error"]["message"]
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/health_generate").status_code == 503
        server.refused("/generate", body, 503)
        assert server.post("/flush_cache", None).status_code == 503
        info = server.http.get("/server_info").json()
        assert (info["status"], info["internal_states"]) == ("dead", [])
        assert total(samples(server), "num_running_reqs") == 0


def test_draining_refuses_new_and_finishes_old() -> None:
    with live() as server:
        answers: list[httpx.Response] = []
        body = {"text": "[wait]", "rid": "old"}
        thread = threading.Thread(target=lambda: answers.append(server.post("/generate", body)))
        thread.start()
        server.until(lambda: server.engine.waiting)
        server.hub.draining = True
        response = server.post("/generate", {"text": "x"})
        assert response.status_code == 503
        assert "retry-after" in response.headers
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/server_info").json()["status"] == "draining"
        server.post("/abort_request", {"rid": "old"})
        thread.join(5)
        assert answers[0].status_code == 200


def test_health_answers_quickly_while_streams_run() -> None:
    with live(engine=FakeEngine(delay=0.001)) as server:
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 900, "n": 20}}
        thread = threading.Thread(target=lambda: server.post("/generate", body))
        thread.start()
        server.until(lambda: server.engine.running)
        with httpx.Client(base_url=server.base) as client:
            client.get("/health")
            times = []
            for _ in range(10):
                began = time.perf_counter()
                assert client.get("/health").status_code == 200
                times.append(time.perf_counter() - began)
        server.post("/abort_request", {"abort_all": True})
        thread.join(10)
        assert sorted(times)[5] < 0.1


def test_info_pages() -> None:
    with live(api_key="secret", page_size=8) as server:
        headers = {"authorization": "Bearer secret"}
        for path in ("/server_info", "/get_server_info"):
            info = server.http.get(path, headers=headers).json()
            assert info["status"] == "ready"
            assert info["internal_states"] == [{"running": 0}]
            assert info["max_req_input_len"] == 999
            assert info["page_size"] == 16  # the engine's word counts
            assert "secret" not in json.dumps(info)
        for path in ("/model_info", "/get_model_info"):
            info = server.http.get(path, headers=headers).json()
            assert info["model_path"] == info["served_model_name"] == "fake/model"
            assert info["is_generation"] is True
            assert info["architectures"] == ["FakeForCausalLM"]
            assert info["chat_template"]["source"] == "{{ messages[0].content }}"
            assert info["chat_template"]["options"] == {}
        load = server.http.get("/v1/loads", headers=headers).json()["loads"][0]
        assert load["num_running_reqs"] == 0


def test_models(server: Live) -> None:
    (card,) = server.http.get("/v1/models").json()["data"]
    assert card["id"] == "fake/model"
    assert card["max_model_len"] == 1000
    assert server.http.get("/v1/models/fake/model").json() == card
    response = server.http.get("/v1/models/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_tokenize_and_detokenize(server: Live) -> None:
    for prefix in ("", "/v1"):
        answer = server.ok(prefix + "/tokenize", {"prompt": "hi"})
        assert answer == {"tokens": [257, 104, 105], "count": 3, "max_model_len": 1000}
        assert server.ok(prefix + "/detokenize", {"tokens": [257, 104, 105]}) == {"text": "hi"}
    assert server.ok("/tokenize", {"prompt": "hi", "add_special_tokens": False})["count"] == 2
    assert server.ok("/tokenize", {"prompt": ["a", "bc"]})["count"] == [2, 3]
    messages = [{"role": "user", "content": "hi"}]
    bare = server.ok("/tokenize", {"messages": messages, "add_generation_prompt": False})
    assert server.ok("/tokenize", {"messages": messages})["count"] == bare["count"] + len("<assistant>")
    assert server.ok("/detokenize", {"tokens": [[104], [105]]}) == {"text": ["h", "i"]}
    assert server.ok("/detokenize", {"tokens": [257, 104], "skip_special_tokens": False}) == {"text": "<bos>h"}
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": messages}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [[1], 2]}),
        ("/detokenize", {"tokens": "x"}),
    ):
        server.refused(path, body)


# ---- control ----


def test_flush_cache(server: Live) -> None:
    assert server.http.get("/flush_cache").status_code == 200
    assert server.http.post("/flush_cache").status_code == 200
    assert server.post("/flush_cache", {"timeout": 1}).status_code == 200
    for query in ("?timeout=x", "?timeout=-1", "?timeout=nan", "?timeout=1e9"):
        assert server.http.get("/flush_cache" + query).status_code == 400


def test_flush_cache_waits_or_refuses_while_busy() -> None:
    with live(engine=FakeEngine(delay=0.005)) as server:
        body = {"text": "x", "sampling_params": {"max_new_tokens": 60}}
        thread = threading.Thread(target=lambda: server.post("/generate", body))
        thread.start()
        server.until(lambda: server.engine.running)
        response = server.http.get("/flush_cache")
        assert response.status_code == 400
        assert "running" in response.json()["error"]["message"]
        assert server.http.get("/flush_cache?timeout=5").status_code == 200
        thread.join(5)


def test_abort_all(server: Live) -> None:
    answers: list[Any] = []
    body = {"text": "[wait]", "sampling_params": {"n": 2}}
    thread = threading.Thread(target=lambda: answers.append(server.ok("/generate", body)))
    thread.start()
    server.until(lambda: len(server.engine.waiting) == 2)
    assert server.post("/abort_request", {"abort_all": True}).status_code == 200
    thread.join(5)
    assert [a["meta_info"]["finish_reason"]["type"] for a in answers[0]] == ["abort", "abort"]
    assert server.post("/abort_request", {"rid": "unknown"}).status_code == 200
    assert server.post("/abort_request", {}).status_code == 200


# ---- disconnects ----


def raw_request(server: Live, body: dict[str, Any], path: str = "/generate") -> socket.socket:
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(data)}"]
    head = "\r\n".join([*lines, "", ""])
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": ["[wait]", "[wait]"]}),
        ("/v1/completions", {"prompt": ["[wait]", "[wait]"]}),
        ("/generate", {"text": ["[wait]", "[wait]"], "stream": True}),
    ],
)
def test_leaving_before_the_answer_aborts(path: str, body: dict[str, Any]) -> None:
    with live() as server:
        connection = raw_request(server, body, path)
        server.until(lambda: len(server.engine.waiting) == 2)
        connection.close()
        server.until(lambda: not server.engine.waiting)
        assert all(abort.quiet for abort in server.engine.aborts)
        assert server.hub.running == 0
        server.until(lambda: total(samples(server), "num_aborted_requests_total") == 2)


def test_leaving_in_mid_stream_aborts() -> None:
    with live(engine=FakeEngine(delay=0.005)) as server:
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 900, "n": 3}}
        connection = raw_request(server, body)
        read = b""
        while b"data: " not in read:
            read += connection.recv(4096)
        connection.close()
        server.until(lambda: not server.engine.running)
        assert server.hub.running == 0
        page = samples(server)
        active = page["sglang:http_requests_active"]
        assert all(value == 0 for labels, value in active.items() if dict(labels)["endpoint"] == "/generate")
        assert server.ok("/generate", {"text": "[say:on]"})["text"] == "on"


def test_many_clients_some_of_whom_leave() -> None:
    with live(engine=FakeEngine(delay=0.001)) as server:
        bodies = [{"text": f"client {i}", "sampling_params": {"max_new_tokens": 40}} for i in range(12)]
        alone = {i: server.ok("/generate", body)["text"] for i, body in enumerate(bodies)}
        gone = [raw_request(server, {**body, "stream": True}) for body in bodies]
        answers: dict[int, str] = {}

        def stay(i: int) -> None:
            answers[i] = server.events("/generate", bodies[i])[-1]["text"]

        threads = [threading.Thread(target=stay, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for connection in gone[::2]:
            connection.close()
        for thread in threads:
            thread.join(10)
        for connection in gone[1::2]:
            connection.close()
        assert answers == alone
        server.until(lambda: server.hub.running == 0 and not server.engine.running)


# ---- metrics ----


def test_cached_tokens_of_embeddings_are_counted(embedder: Live) -> None:
    embedder.engine.cached = 3
    before = samples(embedder)
    for prompt in ("hello", "hello you"):
        embedder.ok("/v1/embeddings", {"input": prompt})
    embedder.engine.cached = 0
    after = samples(embedder)

    def more(name: str) -> float:
        return total(after, name) - total(before, name)

    assert (more("prompt_tokens_total"), more("cached_tokens_total")) == (6 + 10, 2 * 3)
    assert more("uncached_prompt_tokens_histogram_sum") == 6 + 10 - 2 * 3
    assert more("queue_time_seconds_count") == 2


def test_metrics_idle_busy_idle() -> None:
    """S19: valid text, gauges that fall back to 0, counters that only grow, everything counted somewhere."""
    with live(engine=FakeEngine(delay=0.002), api_key="secret") as server:
        key = {"headers": {"authorization": "Bearer secret"}}
        idle = samples(server)
        for name in ("num_running_reqs", "num_queue_reqs", "gen_throughput", "token_usage", "cache_hit_rate"):
            assert total(idle, name) == 0
        assert total(idle, "num_requests_total") == 0
        # Rates need a first value, so all of these are there before there is anything to count.
        for name in ("cached_tokens_total", "num_failed_requests_total", "num_refused_requests_total"):
            assert total(idle, name) == 0
        for name in metrics._HISTOGRAMS:
            assert total(idle, f"{name}_count") == total(idle, f"{name}_bucket") == 0
        assert Totals().counters(0).keys() <= {
            f"{n}_total" for n in (*metrics.ENGINE_COUNTERS, *metrics._COUNTERS)
        }
        assert total(idle, "num_pages") == 256
        assert total(idle, "weight_memory_usage_gb") == 1
        body = {"text": "x", "sampling_params": {"max_new_tokens": 300}}
        thread = threading.Thread(target=lambda: server.post("/generate", body, **key))
        thread.start()
        server.until(lambda: total(samples(server), "num_running_reqs") == 1)
        thread.join(10)
        server.until(lambda: total(samples(server), "num_running_reqs") == 0)
        server.post("/generate", {**body, "stream": True}, **key)
        server.post("/generate", {"text": "[fail:503]"}, **key)
        server.post("/generate", {"text": "x", "sampling_params": {"top_p": 7}}, **key)
        server.http.get("/no/such/path", **key)
        after = samples(server)
        assert total(after, "num_running_reqs") == total(after, "gen_throughput") == 0
        assert {dict(k)["is_streaming"]: v for k, v in after["sglang:num_requests_total"].items()} == {
            "true": 1,
            "false": 1,
        }
        assert total(after, "prompt_tokens_total") == 4
        assert total(after, "generation_tokens_total") == 600
        assert total(after, "time_to_first_token_seconds_count") == 2
        assert total(after, "inter_token_latency_seconds_count") == 598
        assert total(after, "e2e_request_latency_seconds_count") == 2
        assert total(after, "num_failed_requests_total") == 1
        assert total(after, "num_retracted_requests_total") == 2
        statuses = {dict(k)["status_code"]: v for k, v in after["sglang:http_responses_total"].items()
                    if dict(k)["endpoint"] == "/generate"}  # fmt: skip
        assert statuses == {"200": 2, "503": 1, "400": 1}
        endpoints = {dict(k)["endpoint"] for k in after["sglang:http_requests_total"]}
        assert "/no/such/path" not in endpoints
        for name, series in idle.items():
            if name.endswith(("_total", "_count", "_bucket")):
                assert all(after[name][labels] >= value for labels, value in series.items())
        buckets = [v for _, v in sorted(
            ((float(dict(k)["le"]), v) for k, v in after["sglang:inter_token_latency_seconds_bucket"].items())
        )]  # fmt: skip
        assert buckets == sorted(buckets)
        assert buckets[-1] == 598


# ---- keys and CORS ----


def test_keys() -> None:
    with live(api_key="secret", admin_api_key="root") as server:

        def status(path: str, key: str | None, method: str = "GET", **kwargs: Any) -> int:
            headers = {} if key is None else {"authorization": key}
            return server.http.request(method, path, headers=headers, **kwargs).status_code

        for path in ("/health", "/health_generate", "/ready", "/metrics"):
            assert status(path, None) == 200
        for wrong in (None, "Bearer wrong", "secret", "Basic secret", "Bearer root", "Bearer secret2"):
            assert status("/v1/models", wrong) == 401
        assert status("/v1/models", "Bearer secret") == 200
        assert status("/v1/models", "bearer  secret") == 200
        assert status("/no/such", None) == 401
        assert status("/flush_cache", "Bearer secret", "POST") == 401
        assert status("/flush_cache", "Bearer root", "POST") == 200
        assert status("/abort_request", None, "POST", json={}) == 401
        response = server.http.get("/v1/models")
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["www-authenticate"] == "Bearer"
    with live(api_key="secret") as server:
        assert server.http.post("/flush_cache").status_code == 401
        assert server.http.post("/flush_cache", headers={"authorization": "Bearer secret"}).status_code == 200


PREFLIGHT = {
    "origin": "http://a.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def test_preflight_needs_no_key() -> None:
    """S20."""
    with live(api_key="secret") as server:
        response = server.http.options("/v1/chat/completions", headers=PREFLIGHT)
        assert response.status_code in (200, 204)
        assert response.headers["access-control-allow-origin"] == "*"
        assert "POST" in response.headers["access-control-allow-methods"]
        allowed = response.headers["access-control-allow-headers"]
        assert {"authorization", "content-type", "x-stainless-os"} <= set(allowed.split(", "))
        assert "access-control-allow-credentials" not in response.headers
        body = {"messages": [{"role": "user", "content": "[say:x]"}]}
        origin = {"origin": "http://a.example"}
        refused = server.post("/v1/chat/completions", body, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "*"
        good = server.post("/v1/chat/completions", body, headers={**origin, "authorization": "Bearer secret"})
        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == "*"
        assert "x-request-id" in good.headers["access-control-expose-headers"]


def test_cors_with_a_list_of_origins() -> None:
    with live(cors_origins="http://a.example, http://b.example") as server:
        for origin in ("http://a.example", "http://b.example"):
            response = server.http.get("/health", headers={"origin": origin})
            assert response.headers["access-control-allow-origin"] == origin
            assert "Origin" in response.headers["vary"]
        other = server.http.options("/generate", headers={**PREFLIGHT, "origin": "http://evil.example"})
        assert "access-control-allow-origin" not in other.headers


# ---- errors, bodies, ids, logs ----


def test_one_error_shape(server: Live) -> None:
    unknown = server.http.get("/no/such")
    wrong = server.http.get("/generate")
    for response, status in ((unknown, 404), (wrong, 405)):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["code"] == status
    assert "POST" in wrong.headers["allow"]
    assert server.http.delete("/health").status_code == 405


def test_a_slash_at_the_end_is_a_redirect_that_no_proxy_can_break() -> None:
    with live(api_key="k", admin_api_key="a", fastapi_root_path="/llm") as server:
        key = {"headers": {"authorization": "Bearer k"}}
        for path, place in (
            ("/health/", "../health"),
            ("/llm/v1/models/?a=b", "../models?a=b"),
            ("//evil.example/%0ax:y/", "../%0Ax%3Ay"),
        ):
            response = server.http.get(path, headers={"x-forwarded-proto": "https"})
            assert (response.status_code, response.headers["location"]) == (307, place)
        models = server.http.get("/llm/v1/models/", follow_redirects=True, **key)
        assert models.json()["data"][0]["id"] == "fake/model"
        text = server.http.post("/generate/", json={"text": "[say:on]"}, follow_redirects=True, **key).json()[
            "text"
        ]
        assert text == "on"
        assert server.http.post("/flush_cache/", follow_redirects=True, **key).status_code == 401
        for root in ("/", "/llm/"):
            assert server.http.get(root, **key).json()["name"] == "radixlang"


def test_faults_of_ours_are_a_500_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    with live() as server:

        def broken(*args: Any, **kwargs: Any) -> list[int]:
            raise ZeroDivisionError("/secret/path")

        monkeypatch.setattr(server.hub.tokenizer, "encode", broken)
        response = server.post("/generate", {"text": "x"})
        assert response.status_code == 500
        assert "ZeroDivisionError" in response.text
        assert "secret" not in response.text
        assert server.hub.running == 0


def test_request_ids_are_echoed_or_made(server: Live) -> None:
    assert server.http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {server.http.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert server.http.get("/health", headers={"x-request-id": "y" * 500}).headers["x-request-id"] != "y" * 500


@contextlib.contextmanager
def logged(name: str) -> Iterator[Callable[[], list[str]]]:
    """What the logger `name` writes, line by line and as our processes write it."""
    stream = io.StringIO()
    handler, logger = logging.StreamHandler(stream), logging.getLogger(name)
    handler.setFormatter(LineFormat("server"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lambda: [line.partition(" server] ")[2] or line for line in stream.getvalue().splitlines()]
    finally:
        logger.removeHandler(handler)


def test_access_log() -> None:
    with logged("radixlang.access") as lines:
        with live() as server:
            server.post("/generate", {"text": "[say:abc]"}, headers={"x-request-id": "me"})
            server.events("/v1/completions", {"prompt": "[say:abcd]"})
            server.http.get("/health")
            server.http.get("/no%0Asuch%1b[31m%e2%80%ae", headers={"x-forwarded-for": "10.1.2.3"})
            server.post("/generate", {"text": "[mid]", "stream": True})
            server.until(lambda: len(lines()) >= 4)
        first, second, third, fourth = lines()
        assert re.fullmatch(r"INFO 127\.0\.0\.1 POST /generate 200 \d+\.\d ms 10\+4 tokens id=me", first)
        assert re.fullmatch(r"INFO 127\.0\.0\.1 POST /v1/completions 200 \S+ ms 11\+5 tokens id=\w{32}", second)
        assert re.fullmatch(r"INFO 10\.1\.2\.3 GET /no\\nsuch\\x1b\[31m\\u202e 404 \S+ ms id=\w{32}", third)
        assert re.fullmatch(r"INFO \S+ POST /generate 200 \S+ ms.* failed 500 id=\w{32}", fourth)
        with live(disable_access_log=True) as server:
            server.post("/generate", {"text": "[say:abc]"})
        assert len(lines()) == 4


def test_errors_are_logged_with_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("some detail")

    with logged("radixlang.server") as lines, live() as server:
        monkeypatch.setattr(server.hub, "generate", broken)
        response = server.post("/generate", {"text": "x"}, headers={"x-request-id": "lost"})
        assert response.status_code == 500
        assert lines()[0] == "ERROR /generate failed id=lost"
        assert lines()[-1] == "ValueError: some detail"


def test_root_path_of_a_proxy() -> None:
    with live(fastapi_root_path="/llm", api_key="k", admin_api_key="a") as server:
        for prefix in ("", "/llm"):
            assert server.http.get(prefix + "/health").status_code == 200
        response = server.http.post("/llm/flush_cache", headers={"authorization": "Bearer k"})
        assert response.status_code == 401
        document = server.http.get("/openapi.json", headers={"authorization": "Bearer k"}).json()
        assert document["servers"] == [{"url": "/llm"}]


def test_docs_work_offline(server: Live) -> None:
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/chat/completions" in page.text
    assert "max_completion_tokens" in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert server.http.get("/").json()["name"] == "radixlang"


def test_durations_of_the_engine_are_a_histogram():
    from radixlang.messages import Stats
    from radixlang.server.metrics import Metrics

    metrics = Metrics("m", {})
    name = "grammar_compilation_time_seconds"
    metrics.update(Stats({}, {"num_grammar_total": 3.0}, times={name: [0.0004, 0.03]}))
    metrics.update(Stats({}, {"num_grammar_total": 4.0}, times={name: [0.03]}))
    page = metrics.text().decode()
    lines = [line for line in page.splitlines() if line.startswith(f"sglang:{name}")]
    assert [line.split()[-1] for line in lines if 'le="0.001"' in line] == ["1.0"]
    assert [line.split()[-1] for line in lines if 'le="+Inf"' in line] == ["3.0"]
    assert "sglang:num_grammar_total{" in page
