"""The host's work without a GPU: the real scheduler, loop, channels, detokenizer and server over a device that
does nothing. Tables in markdown.

    python benchmarks/host.py                       # all sections
    python benchmarks/host.py step admission        # host work a decode step; 256 cached prompts, one token
    python benchmarks/host.py step --cold           # as beside a device whose steps take milliseconds
    python benchmarks/host.py http --pace 0.016     # 256 streams over HTTP, a step every 16 ms

What the device executor does on the host in a graph's step is done here too; copies, graph launches and events
are not. `http` needs a tokenizer: `--model`, by default the default model.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import READY, environment
from empty_device import ROWS, VOCABULARY, EmptyDevice, shape_of

from radixlang.channel import ZmqReceiver, ZmqSender
from radixlang.config import Config
from radixlang.engine.build import engine_info, scheduler_limits
from radixlang.engine.idle import Collector
from radixlang.engine.loop import EngineLoop
from radixlang.engine.recorder import HOST_PARTS, StepRecorder
from radixlang.messages import FromEngine, Generate, ToEngine, Tokens, pack_ids
from radixlang.process import Start, spawn
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler.scheduler import Scheduler

PROMPT, ANSWER = 1024, 256


class Loop:
    """The engine's loop of one process with the channels of the ring, as `radixlang bench step` has it."""

    def __init__(self, cold: bool = False, **options: Any) -> None:
        self._folder = tempfile.mkdtemp(prefix="radixlang-")
        shape = shape_of()
        config = Config.from_flat(model_path="none", random_seed=1, **options).resolve()
        device = EmptyDevice(shape, cold=cold)
        self.recorder = StepRecorder(device.platform if cold else None)
        self.inbox = ZmqReceiver(f"ipc://{self._folder}/in", ToEngine)
        self.outbox = ZmqReceiver(f"ipc://{self._folder}/out", FromEngine)
        self.client = ZmqSender(f"ipc://{self._folder}/in")
        self.loop = EngineLoop(
            device,
            Scheduler(scheduler_limits(config, shape)),
            self.inbox,
            ZmqSender(f"ipc://{self._folder}/out"),
            engine_info(shape, time.time()),
            recorder=self.recorder,
            collector=Collector(),
        )

    def close(self) -> None:
        for end in (self.client, self.loop.sender, self.inbox, self.outbox):
            end.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, prompts: list[list[int]], new: int) -> float:
        """Seconds from the first message sent to the last one received."""
        sampling = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
        packed = [pack_ids(prompt) for prompt in prompts]
        began = time.perf_counter()
        for i, ids in enumerate(packed):
            self.client.send(Generate(f"{i:032x}", ids, sampling))
        left = len(prompts)
        while left:
            self.loop.turn()
            if self.loop.scheduler.idle:
                left -= sum(
                    finish is not None
                    for message in self.outbox.receive(0.001)
                    if isinstance(message, Tokens)
                    for finish in message.finishes
                )
        return time.perf_counter() - began


def prompts_of(rows: int, length: int) -> list[list[int]]:
    return [[random.randrange(100, VOCABULARY) for _ in range(length)] for _ in range(rows)]


def pair(samples: list[float]) -> str:
    """Median / 99th percentile in ms."""
    return f"{1e3 * statistics.median(samples):.3f} / {1e3 * float(np.percentile(samples, 99)):.3f}"


def step(arguments: argparse.Namespace) -> None:
    """Host work of the turns that launch and process a decode step."""
    loop = Loop(arguments.cold, max_running_requests=ROWS)
    columns: dict[str, list[str]] = {part: [] for part in ("whole", *HOST_PARTS, "the rest")}
    for rows in arguments.rows:
        loop.recorder.take()
        loop.run(prompts_of(rows, 64), arguments.steps + 8)
        turns = [turn for turn in loop.recorder.take() if turn.rows == turn.tokens == rows][8:]
        columns["whole"].append(pair([turn.host for turn in turns]))
        for part in HOST_PARTS:
            columns[part].append(pair([turn.spans[part] for turn in turns]))
        rest = [turn.seconds - sum(turn.spans[part] for part in HOST_PARTS) for turn in turns]
        columns["the rest"].append(pair(rest))
    loop.close()
    print(f"| host work a step, median / p99 in ms | {' | '.join(f'{rows} rows' for rows in arguments.rows)} |")
    print("|---" * (1 + len(arguments.rows)) + "|")
    for name, cells in columns.items():
        print(f"| {'' if name == 'whole' else '– '}{name} | {' | '.join(cells)} |")
    print()


def admission(arguments: argparse.Namespace) -> None:
    """256 cached prompts of 1,024 tokens, one token each: the engine's loop alone."""
    loop = Loop(max_running_requests=ROWS)
    prompts = prompts_of(ROWS, PROMPT)
    loop.run(prompts, 1)
    loop.recorder.take()
    times, parts = [], dict.fromkeys(HOST_PARTS, 0.0)
    for _ in range(5):
        times.append(loop.run(prompts, 1))
    turns = loop.recorder.take()
    for part in HOST_PARTS:
        parts[part] = sum(turn.spans[part] for turn in turns) / len(times)
    loop.close()
    print(f"| {ROWS} cached prompts of {PROMPT} tokens, one token each | ms |\n|---|---|")
    print(f"| first message sent to last received | {1e3 * statistics.median(times):.1f} |")
    for part, seconds in parts.items():
        print(f"| – {part} | {1e3 * seconds:.1f} |")
    print(f"| steps | {sum(turn.rows > 0 for turn in turns) / len(times):.1f} |\n")


# ---- over HTTP ----


def server_main(model: str, flags: list[str]) -> None:
    """The server's process, its engine replaced by one without a model."""
    from radixlang import launch, ring
    from radixlang.config import add_arguments, from_namespace

    def other(module: str, start: Start) -> subprocess.Popen[bytes]:
        return spawn("empty_device" if module == "radixlang.engine.worker" else module, start)

    ring.spawn = other
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    config = from_namespace(parser.parse_args(["--model-path", model, "--port", "0", *flags]))
    sys.exit(launch.serve(config, ready=lambda url: print(f"ready: {url}", flush=True)))


async def one_stream(port: int, path: str, body: bytes, marks: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    try:
        while data := await reader.read(1 << 16):
            events = data.count(b"data: {")
            marks += [time.perf_counter()] * events
            if b"data: [DONE]" in data:
                break
    finally:
        writer.close()


async def client(port: int, rows: int, length: int, new: int, chat: bool) -> dict[str, Any]:
    """All streams at once → figures."""
    marks: list[list[float]] = [[] for _ in range(rows)]
    fields = {"model": "default", "max_tokens": new, "stream": True, "temperature": 0, "ignore_eos": True}
    if chat:
        path = "/v1/chat/completions"
        bodies = [
            json.dumps(fields | {"messages": [{"role": "user", "content": f"{i} hello"}]}) for i in range(rows)
        ]
    else:
        path = "/v1/completions"
        bodies = [json.dumps(fields | {"prompt": ids}) for ids in prompts_of(rows, length)]
    began = time.perf_counter()
    await asyncio.gather(
        *(one_stream(port, path, body.encode(), mark) for body, mark in zip(bodies, marks, strict=True))
    )
    seconds = time.perf_counter() - began
    gaps = [b - a for mark in marks for a, b in itertools.pairwise(mark)]
    return {
        "tok/s": rows * new / seconds,
        "events": sum(map(len, marks)),
        "ttft p50, s": float(np.median([mark[0] - began for mark in marks])),
        "gap p50, ms": 1e3 * float(np.median(gaps)),
        "gap p99, ms": 1e3 * float(np.percentile(gaps, 99)),
        "client CPU s": time.process_time(),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stages(server: int) -> dict[str, int]:
    """Stage name → process id of the server's family."""
    found = {"server": server}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_text()
        except (OSError, IndexError):
            continue
        if parent == server:
            found["detokenizer" if "text.worker" in line else "engine"] = int(folder.name)
    return found


def http(arguments: argparse.Namespace) -> None:
    """256 streams at once; CPU seconds of every process per 1,000 tokens."""
    command = [sys.executable, __file__, "--serve", "--model", arguments.model]
    command += ["--", "--disable-access-log", "--max-running-requests", str(ROWS), *arguments.flags]
    environment_ = os.environ | {"PACE": str(arguments.pace)}
    environment_["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment_)
        try:
            while True:
                log.seek(0)
                match = READY.search(log.read())
                if match:
                    break
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read()}")
                time.sleep(0.05)
            pids = stages(process.pid)
            before = {name: cpu_seconds(pid) for name, pid in pids.items()}
            out = subprocess.run(
                [sys.executable, __file__, "--client", match.group(1).rpartition(":")[2],
                 *(["--chat"] if arguments.chat else [])],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            used = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        finally:
            process.terminate()
            process.wait(30)
    figures = json.loads(out)
    print(f"| {ROWS} streams, {PROMPT} in / {ANSWER} out, a step every {1e3 * arguments.pace:.0f} ms | |")
    print("|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {value:,.2f} |")
    for name, seconds in used.items():
        print(f"| {name}: CPU ms per 1,000 tokens | {1e6 * seconds / (ROWS * ANSWER):.1f} |")
    print()


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {"step": step, "admission": admission, "http": http}


def main() -> None:
    parser = argparse.ArgumentParser(description="Host work without a device.")
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 32, ROWS], help="of `step`")
    parser.add_argument(
        "--cold", action="store_true", help="`step`: the caches lose the host's data between steps"
    )
    parser.add_argument("--pace", type=float, default=0.016)
    parser.add_argument("--model", default="default")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--flags", nargs="*", default=[])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:at])
    if arguments.serve:
        server_main(arguments.model, sys.argv[at + 1 :])
    if arguments.client:
        print(json.dumps(asyncio.run(client(arguments.client, ROWS, PROMPT, ANSWER, arguments.chat))))
        return
    random.seed(1)
    print(environment("host"))
    for name in arguments.sections or SECTIONS:
        SECTIONS[name](arguments)


if __name__ == "__main__":
    main()
