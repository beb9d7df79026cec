"""Many streaming clients of which a third leaves at a random time.

    python benchmarks/disconnects.py [--clients 200]

Every finished answer must equal the one given alone; afterwards free + cached pages = all pages; `/health` is
asked every 50 ms throughout and its slowest answer is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time

import httpx
from common import ServerProcess, environment


async def client(
    http: httpx.AsyncClient, url: str, body: dict, leave_after: int | None, delay: float
) -> str | None:
    """The finished text, or None for a client that left."""
    await asyncio.sleep(delay)
    text = None
    async with http.stream("POST", url + "/generate", json=body) as stream:
        assert stream.status_code == 200, stream.status_code
        count = 0
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                text = chunk["text"]
                count += 1
                if leave_after is not None and count >= leave_after:
                    return None
    return text


async def health(url: str, stop: asyncio.Event) -> list[float]:
    """Seconds each health check took."""
    times = []
    async with httpx.AsyncClient(timeout=30) as http:
        while not stop.is_set():
            began = time.perf_counter()
            answer = await http.get(url + "/health")
            times.append(time.perf_counter() - began)
            assert answer.status_code == 200
            await asyncio.sleep(0.05)
    return times


async def run(url: str, clients: int, seed: int) -> None:
    rng = random.Random(seed)
    bodies = [
        {
            "text": f"{'Once upon a time. ' * rng.randrange(1, 30)}Story number {i}:",
            "sampling_params": {"temperature": 0, "max_new_tokens": rng.randrange(4, 24), "ignore_eos": True},
            "stream": True,
        }
        for i in range(clients)
    ]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=1200, limits=limits) as http:
        alone = []
        for body in bodies:
            answer = await http.post(url + "/generate", json={**body, "stream": False})
            alone.append(answer.json()["text"])
        await http.post(url + "/flush_cache")
        stop = asyncio.Event()
        watcher = asyncio.create_task(health(url, stop))
        began = time.perf_counter()
        texts = await asyncio.gather(
            *(
                client(http, url, body, rng.randrange(1, 12) if i % 3 == 0 else None, rng.random() * 2)
                for i, body in enumerate(bodies)
            )
        )
        seconds = time.perf_counter() - began
        for _ in range(100):
            state = (await http.get(url + "/get_server_info")).json()["internal_states"][0]
            if not state["num_running_reqs"] and not state["num_queue_reqs"]:
                break
            await asyncio.sleep(0.1)
        stop.set()
        times = sorted(await watcher)
    finished = [i for i, text in enumerate(texts) if text is not None]
    wrong = [i for i in finished if texts[i] != alone[i]]
    free, cached = int(state["kv_available_tokens"]), int(state["kv_evictable_tokens"])
    total = int(state["max_total_num_tokens"])
    print(environment("disconnects"))
    columns = {
        "clients": clients,
        "left early": clients - len(finished),
        "finished": len(finished),
        "wrong texts": len(wrong),
        "free + cached tokens": f"{free} + {cached} = {free + cached}",
        "all": total,
        "/health checks": len(times),
        "p50 ms": f"{1000 * times[len(times) // 2]:.1f}",
        "slowest ms": f"{1000 * times[-1]:.0f}",
        "s": f"{seconds:.0f}",
    }
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    print(f"| {' | '.join(str(value) for value in columns.values())} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="default")
    args = parser.parse_args()
    with ServerProcess(args.model) as server:
        asyncio.run(run(server.url, args.clients, args.seed))


if __name__ == "__main__":
    main()
