"""A real server in processes of its own, on the default model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import POOL

READY = re.compile(r"ready in .*: (http://\S+) serves")


class Server:
    """`radixlang serve` as a child process; `url` once it is ready, `output` what it printed so far."""

    def __init__(self, model: Path | str, *flags: str, log: Path, wait: bool = True) -> None:
        self._log = log
        command = [sys.executable, "-m", "radixlang.launch_server", "--model-path", str(model), "--port", "0"]
        command += ["--max-total-tokens", str(POOL), *flags]
        self._file = log.open("w")
        self.process = subprocess.Popen(
            command,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self.url = ""
        if wait:
            self.wait_ready()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_ready(self, timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            match = READY.search(self.output)
            if match:
                self.url = match.group(1)
                return
            if self.process.poll() is not None:
                raise AssertionError(f"the server left with {self.process.returncode}:\n{self.output}")
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready after {timeout} s:\n{self.output}")

    def children(self) -> list[int]:
        """Process ids of engine and detokenizer."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(line) for line in found.stdout.split()]

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self._file.close()


@pytest.fixture(scope="package")
def server(smollm2_path, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    running = Server(smollm2_path, "--served-model-name", "smol", log=folder / "log")
    yield running
    assert running.stop() == 0, running.output
