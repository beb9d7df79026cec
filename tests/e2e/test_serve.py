"""The main job on real input: a client talks to a real model through HTTP."""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import openai
import pytest

from tests.conftest import reference
from tests.e2e.conftest import Server

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY = {"temperature": 0, "max_new_tokens": 32}


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def metrics(server):
    text = httpx.get(server.url + "/metrics").text
    out = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            out.setdefault(name.split("{")[0], 0.0)
            out[name.split("{")[0]] += float(value)
    return out


def wait_idle(server, timeout=20):
    """Gauges after the last request has ended; fails when something stays behind."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        info = httpx.get(server.url + "/get_server_info").json()["internal_states"][0]
        if info["num_running_reqs"] == 0 and info["num_queue_reqs"] == 0 and info["num_used_tokens"] == 0:
            return info
        time.sleep(0.1)
    raise AssertionError(f"not idle: {info}")


def wait_busy(server, timeout=20):
    """Until a request runs: how long it takes to arrive depends on what else the machine does."""
    deadline = time.monotonic() + timeout
    while httpx.get(server.url + "/get_server_info").json()["internal_states"][0]["num_running_reqs"] == 0:
        assert time.monotonic() < deadline, "no request has arrived"
        time.sleep(0.02)


def test_chat(client):
    answer = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_equals_the_whole(client):
    whole = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model="smol",
            messages=QUESTION,
            temperature=0,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == "stop"
    assert not any(reasons[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_native_equals_the_reference(server):
    for case in reference("smollm2")["cases"][:3]:
        body = {"input_ids": case["prompt_ids"], "sampling_params": {**GREEDY, "ignore_eos": True}}
        answer = httpx.post(server.url + "/generate", json=body, timeout=60).json()
        assert answer["output_ids"] == case["greedy_ids"][:32]


def test_own_stop_list_keeps_the_end_token(client):
    """S01."""
    plain = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=100)
    stopped = client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_tokens=100, stop=["@@never@@"]
    )
    assert stopped.choices[0].message.content == plain.choices[0].message.content
    assert stopped.choices[0].finish_reason == plain.choices[0].finish_reason == "stop"


def test_stop_string_cuts_text_and_counts(server, client):
    full = client.completions.create(model="smol", prompt="Count: one, two,", temperature=0, max_tokens=24)
    word = full.choices[0].text.split()[3]
    cut = client.completions.create(
        model="smol", prompt="Count: one, two,", temperature=0, max_tokens=24, stop=[word]
    )
    assert cut.choices[0].text == full.choices[0].text.split(word)[0]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < full.usage.completion_tokens
    wait_idle(server)


def test_end_tokens(server):
    """S06: ignore_eos covers all end tokens, min_new_tokens masks them."""
    prompt = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
    for params, least in (({"ignore_eos": True}, 60), ({"min_new_tokens": 40}, 40)):
        body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 60, **params}}
        answer = httpx.post(server.url + "/generate", json=body, timeout=60).json()
        assert answer["meta_info"]["completion_tokens"] >= least
    bad = httpx.post(
        server.url + "/generate", json={"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 5}}
    )
    assert bad.status_code == 400


def test_seeds_differ_repeat_and_ignore_traffic(client):
    """S08."""

    def ask(seed):
        answer = client.completions.create(
            model="smol", prompt="Once upon a", n=4, seed=seed, temperature=1.2, max_tokens=16
        )
        return [choice.text for choice in answer.choices]

    first = ask(7)
    assert len(set(first)) == 4
    assert ask(7) == first
    assert ask(8) != first
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        noise = [pool.submit(ask, 100 + i) for i in range(4)]
        amid = pool.submit(ask, 7)
        assert amid.result() == first
        for future in noise:
            future.result()


def test_penalties_leave_the_prompt_alone(server):
    """S09: frequency and presence penalties see the answer only, the repetition penalty sees the prompt too."""
    tokens = httpx.post(server.url + "/tokenize", json={"prompt": " Paris", "add_special_tokens": False}).json()
    paris = tokens["tokens"][0]

    def first(**params):
        body = {
            "text": "Paris Paris Paris Paris",
            "sampling_params": {"temperature": 0, "max_new_tokens": 1, **params},
            "return_logprob": True,
            "token_ids_logprob": [paris, 500],
        }
        meta = httpx.post(server.url + "/generate", json=body, timeout=60).json()["meta_info"]
        return [row[0] for row in meta["output_token_ids_logprobs"][0]]

    plain = first()
    assert first(frequency_penalty=2, presence_penalty=2) == pytest.approx(plain, abs=1e-3)
    punished = first(repetition_penalty=2.0)
    assert punished[0] < plain[0] - 1
    assert punished[1] == pytest.approx(plain[1], abs=0.1)


def test_stop_ids_outside_the_vocabulary_hurt_nobody(server):
    """S07."""
    good = {"text": "The sky is", "sampling_params": GREEDY}
    alone = httpx.post(server.url + "/generate", json=good, timeout=60).json()["text"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        neighbour = pool.submit(httpx.post, server.url + "/generate", json=good, timeout=60)
        for ids in ([10**9], [-1], ["a"]):
            body = {"text": "hi", "sampling_params": {"stop_token_ids": ids, "min_new_tokens": 3}}
            assert httpx.post(server.url + "/generate", json=body).status_code == 400
        assert neighbour.result().json()["text"] == alone


def test_multi_turn_is_served_from_the_cache(client):
    system = "You are a helpful assistant. " * 40
    messages = [{"role": "system", "content": system}]
    cached = prompt = 0
    for turn in range(4):
        messages.append({"role": "user", "content": f"Say the number {turn}."})
        answer = client.chat.completions.create(model="smol", messages=messages, temperature=0, max_tokens=12)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        if turn:
            cached += answer.usage.prompt_tokens_details.cached_tokens
            prompt += answer.usage.prompt_tokens
    assert cached / prompt > 0.85


def test_tokenize_round_trip(server):
    text = "Grüße, 世界! 🙂\n"
    tokens = httpx.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()[
        "tokens"
    ]
    assert httpx.post(server.url + "/detokenize", json={"tokens": tokens}).json()["text"] == text


def test_disconnects_free_their_pages_and_change_no_text(server):
    """Part of issue 2's line 7; `benchmarks/disconnects.py` is the whole of it."""
    rng = random.Random(4)
    prompts = [f"Write a story about the number {i}." for i in range(24)]
    bodies = [
        {"text": p, "sampling_params": {"temperature": 0, "max_new_tokens": 24}, "stream": True} for p in prompts
    ]
    alone = [
        httpx.post(server.url + "/generate", json={**body, "stream": False}, timeout=60).json()["text"]
        for body in bodies[:6]
    ]

    def run(i):
        leave_after = rng.randrange(1, 12) if i % 3 == 2 else None
        text = None
        with httpx.stream("POST", server.url + "/generate", json=bodies[i], timeout=120) as stream:
            for n, line in enumerate(stream.iter_lines()):
                if line.startswith("data: {"):
                    text = json.loads(line[6:])["text"]
                if leave_after is not None and n >= leave_after:
                    return None
        return text

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        texts = list(pool.map(run, range(24)))
    for i in range(6):
        assert texts[i] in (None, alone[i])
    wait_idle(server)


def test_metrics_fall_back_to_zero(server):
    """S19."""
    httpx.post(server.url + "/generate", json={"text": "hi", "sampling_params": GREEDY}, timeout=60)
    wait_idle(server)
    time.sleep(0.5)
    now = metrics(server)
    assert now["sglang:num_running_reqs"] == now["sglang:num_queue_reqs"] == 0
    assert now["sglang:generation_tokens_total"] > 0


def test_flush_cache(server):
    wait_idle(server)
    assert httpx.post(server.url + "/flush_cache").status_code == 200
    body = {"text": "The sky is blue because of the way that light", "sampling_params": {"max_new_tokens": 1}}
    answer = httpx.post(server.url + "/generate", json=body, timeout=60).json()
    assert answer["meta_info"]["cached_tokens"] == 0


def test_health_generate(server):
    assert httpx.get(server.url + "/health_generate", timeout=30).status_code == 200


# ---- servers of their own ----


def test_sigterm_drains(smollm2_path, tmp_path):
    """Requests end, and what was computed for them is on disk."""
    running = Server(smollm2_path, "--cache-dir", str(tmp_path / "pages"), log=tmp_path / "log")
    result = {}

    def ask():
        body = {
            "text": "Tell me a story.",
            "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True},
        }
        result["answer"] = httpx.post(running.url + "/generate", json=body, timeout=60)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_busy(running)
    code = running.stop()
    thread.join()
    assert code == 0, running.output
    meta = result["answer"].json()["meta_info"]
    assert meta["completion_tokens"] == 60
    kept = [path for path in (tmp_path / "pages").rglob("*") if path.is_file()]
    assert len(kept) == (meta["prompt_tokens"] + 59) // 16


def test_a_dead_engine_ends_the_server(smollm2_path, tmp_path):
    running = Server(smollm2_path, log=tmp_path / "log")
    children = running.children()
    assert len(children) == 2
    failures = []

    def ask():
        try:
            body = {"text": "x", "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
            failures.append(httpx.post(running.url + "/generate", json=body, timeout=30).status_code)
        except httpx.HTTPError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_busy(running)
    os.kill(children[0], signal.SIGKILL)
    thread.join(15)
    assert not thread.is_alive()
    assert failures[0] == 503 or isinstance(failures[0], httpx.HTTPError)
    assert running.process.wait(15) == 1
    assert "was killed by SIGKILL; start again" in running.output
    running.stop()


def test_children_leave_with_the_server(smollm2_path, tmp_path):
    running = Server(smollm2_path, log=tmp_path / "log")
    children = running.children()
    running.process.kill()
    running.process.wait()
    deadline = time.monotonic() + 10
    alive = children
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in alive if os.path.exists(f"/proc/{pid}") and _state(pid) != "Z"]
        time.sleep(0.05)
    assert not alive
    running.stop()


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_queue_limit(smollm2_path, tmp_path):
    """S18: new arrivals are turned away with Retry-After, those taken finish."""
    running = Server(
        smollm2_path, "--max-queued-requests", "2", "--max-running-requests", "2", "--max-total-tokens", "512",
        log=tmp_path / "log",
    )  # fmt: skip
    body = {"text": "Tell me.", "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: httpx.post(running.url + "/generate", json=body, timeout=60), range(12)))
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
        else:
            assert answer.json()["meta_info"]["completion_tokens"] == 60
    assert running.stop() == 0


def test_queue_timeout(smollm2_path, tmp_path):
    running = Server(smollm2_path, "--queue-timeout", "0.5", "--max-running-requests", "1", log=tmp_path / "log")
    body = {"text": "Tell me.", "sampling_params": {"temperature": 0, "max_new_tokens": 120, "ignore_eos": True}}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        codes = sorted(
            pool.map(lambda _: httpx.post(running.url + "/generate", json=body, timeout=60).status_code, range(3))
        )
    assert codes == [200, 503, 503]
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model-path", "/no/such/model"], "/no/such/model"),
        (["--model-path", "default", "--page-size", "0"], "--page-size"),
        (["--model-path", "default", "--pagesize", "4"], "--pagesize"),
        (["--model-path", "default", "--lora-paths", "a"], "--lora-paths"),
        (["--model-path", "default", "--attention-backend", "nope"], "nope"),
        (["--model-path", "default", "--context-length", "x"], "--context-length"),
        ([], "--model-path"),
    ],
)
def test_bad_flags_are_one_clear_line(flags, words, smollm2_path):
    result = subprocess.run(
        [sys.executable, "-m", "radixlang.launch_server", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert result.returncode == 2
    assert len(lines) == 1, result.stderr
    assert words in lines[0]


def test_port_in_use_is_found_before_the_model_loads(smollm2_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        began = time.monotonic()
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "radixlang.launch_server",
                "--model-path",
                str(smollm2_path),
                "--port",
                str(port),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2
    assert str(port) in result.stderr
    assert "Traceback" not in result.stderr
    assert time.monotonic() - began < 20


def test_the_cache_and_the_requests_can_be_looked_at(server):
    prompt = "The lighthouse keeper counted ships, and wrote their names into a long book. " * 3
    body = {"text": prompt, "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    for _ in range(2):
        assert httpx.post(server.url + "/generate", json=body, timeout=60).status_code == 200
    view = httpx.get(server.url + "/cache_tree").json()
    run = max(view["runs"], key=lambda run: run.get("text", "").startswith("The lighthouse keeper"))
    assert run["text"].startswith("The lighthouse keeper counted ships")
    assert run["hits"] >= 1
    assert run["pages"] * view["page_size"] == run["tokens"]
    assert httpx.get(server.url + "/requests").json()["num_waiting"] == 0
    assert "<title>RadixLang</title>" in httpx.get(server.url + "/ui").text
