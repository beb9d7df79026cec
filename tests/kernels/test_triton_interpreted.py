"""Runs the Triton tests in processes where Triton interprets its kernels on the CPU.

Triton chooses between compiler and interpreter when it is imported, and other tests may have imported it
already. On a machine with a GPU the files run by themselves, compiled, and this one has nothing to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are tested compiled, on the GPU"),
    pytest.mark.timeout(1200),  # each test of a file has its own limit
]

TESTS = Path(__file__).resolve().parents[1]
FILES = [
    "kernels/test_triton_attention.py",
    "kernels/test_triton_automaton.py",
    "kernels/test_triton_edits.py",
    "kernels/test_triton_layers.py",
    "kernels/test_triton_mailbox.py",
    "kernels/test_triton_sampling.py",
    "kernels/test_triton_skinny.py",
    "kernels/test_triton_tree.py",
    "kernels/test_triton_exact.py",
    "layers/test_triton_ops.py",
    "attention/test_triton_backend.py",
    "executor/test_step_graphs.py",
    "sampling/test_triton_sampler.py",
    "executor/test_triton_graphs.py",
    "executor/test_layer_gates.py",
    "executor/test_exactness_triton.py",
]
Run = subprocess.CompletedProcess[str]


def run(file: str) -> Run:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / file)],
        cwd=TESTS.parent,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Run]]]:
    """The files that were asked for, two at a time unless this process is one of several itself."""
    wanted = [item.callspec.params["file"] for item in request.session.items if item.fspath == request.fspath]
    with ThreadPoolExecutor(1 if "PYTEST_XDIST_WORKER" in os.environ else 2) as pool:
        yield {file: pool.submit(run, file) for file in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("file", FILES)
def test_interpreted(file: str, runs: dict[str, Future[Run]]) -> None:
    done = runs[file].result()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
