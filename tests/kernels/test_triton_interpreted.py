"""Runs the Triton tests in processes where Triton interprets its kernels on the CPU.

Triton chooses between compiler and interpreter when it is imported, and other tests may have imported it
already. On a machine with a GPU the files run by themselves, compiled, and this one has nothing to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are tested compiled, on the GPU")
@pytest.mark.parametrize(
    "file",
    [
        "kernels/test_triton_attention.py",
        "kernels/test_triton_automaton.py",
        "kernels/test_triton_edits.py",
        "kernels/test_triton_layers.py",
        "kernels/test_triton_sampling.py",
        "kernels/test_triton_skinny.py",
        "kernels/test_triton_exact.py",
        "attention/test_triton_backend.py",
        "executor/test_step_graphs.py",
        "sampling/test_triton_sampler.py",
        "executor/test_triton_graphs.py",
        "executor/test_exactness_triton.py",
    ],
)
def test_interpreted(file: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / file)],
        cwd=TESTS.parent,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
