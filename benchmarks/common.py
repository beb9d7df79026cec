"""What the benchmarks share: a server in a process of its own, and a line that says where a table was made."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: a model that runs anywhere in no time: the small form of benchmarks that are meant for a GPU
TINY = {
    "name": "tiny",
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

READY = re.compile(r"ready in .*: (http://\S+) serves")


class ServerProcess:
    """`python -m radixlang.launch_server` on a free port; `ready_seconds` is the time from spawn to ready."""

    def __init__(self, model: str, *flags: str) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "radixlang.launch_server", "--model-path", model, "--port", "0",
             "--disable-access-log", *flags],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        while True:
            text = Path(self._log.name).read_text()
            match = READY.search(text)
            if match:
                break
            if self.process.poll() is not None:
                raise SystemExit(f"the server did not start:\n{text}")
            time.sleep(0.01)
        self.ready_seconds = time.perf_counter() - began
        self.url = match.group(1)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._log.close()


def cpu_name() -> str:
    """Model name of the processor and how many cores this process may use."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        name = re.search(r"model name\s*:\s*(.*)", text)
        flags = re.search(r"flags\s*:\s*(.*)", text)
        known = set(flags.group(1).split()) if flags else set()
        isa = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if f in known]
        shown = f"{name.group(1) if name else platform.machine()} ({' '.join(isa)})"
    except OSError:
        shown = platform.processor() or platform.machine()
    return f"{shown}, {len(os.sched_getaffinity(0))} cores"


def environment(script: str) -> str:
    """Date, command, processor and versions, as a markdown paragraph."""
    versions = []
    for name in ("torch", "numba", "transformers", "numpy"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    command = " ".join(["python", f"benchmarks/{script}.py", *sys.argv[1:]])
    today = datetime.date.today().isoformat()
    return f"{today}, `{command}`; {cpu_name()}; Python {platform.python_version()}, {', '.join(versions)}\n"
