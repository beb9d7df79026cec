"""What the benchmarks share: a server in a process of its own, and a line that says where a table was made."""

from __future__ import annotations

import datetime
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from radixlang.bench.report import PACKAGES, machine, versions

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


def environment(script: str) -> str:
    """Date, command, processor and versions, as a markdown paragraph."""
    names = ", ".join(f"{name} {version}" for name, version in versions((*PACKAGES, "transformers")).items())
    command = " ".join(["python", f"benchmarks/{script}.py", *sys.argv[1:]])
    return f"{datetime.date.today().isoformat()}, `{command}`; {machine()}; {names}\n"
