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
#: of about the same length; a process for each file would import torch and Triton again and again
PARTS = {
    "kernels": [
        "kernels/test_triton_attention.py",
        "kernels/test_triton_automaton.py",
        "kernels/test_triton_edits.py",
        "kernels/test_triton_exact.py",
        "kernels/test_triton_layers.py",
        "kernels/test_triton_mailbox.py",
        "kernels/test_triton_sampling.py",
        "kernels/test_triton_skinny.py",
        "kernels/test_triton_tree.py",
    ],
    "what calls them": [
        "attention/test_triton_backend.py",
        "executor/test_exactness_triton.py",
        "executor/test_layer_gates.py",
        "executor/test_step_graphs.py",
        "executor/test_triton_graphs.py",
        "layers/test_ops.py",
        "layers/test_triton_ops.py",
        "sampling/test_triton_sampler.py",
    ],
}
Run = subprocess.CompletedProcess[str]


def run(part: str) -> Run:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(TESTS / f) for f in PARTS[part])],
        cwd=TESTS.parent,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Run]]]:
    """The parts that were asked for, two at a time unless this process is one of several itself."""
    names = {item.name for item in request.session.items}
    wanted = [part for part in PARTS if f"test_interpreted[{part}]" in names]
    with ThreadPoolExecutor(1 if "PYTEST_XDIST_WORKER" in os.environ else 2) as pool:
        yield {part: pool.submit(run, part) for part in wanted}
        pool.shutdown(cancel_futures=True)


def test_no_file_is_left_out() -> None:
    """Of those that skip themselves because they are run here."""
    mark = f'"run by tests/kernels/{Path(__file__).name}"'
    waiting = {str(file.relative_to(TESTS)) for file in TESTS.rglob("test_*.py") if mark in file.read_text()}
    assert waiting <= {file for files in PARTS.values() for file in files}


@pytest.mark.parametrize("part", PARTS)
def test_interpreted(part: str, runs: dict[str, Future[Run]]) -> None:
    done = runs[part].result()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
