"""Every kernel compiles for real GPUs, none of which need be present, within their shared memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot be compiled here")

HERE = Path(__file__).parent
KERNELS = {
    "_decode_kernel",
    "_join_kernel",
    "_tree_kernel",
    "_extend_kernel",
    "_rms_norm_kernel",
    "_gated_kernel",
    "_rope_write_kernel",
    "_sample_kernel",
    "_summary_kernel",
    "_angles_kernel",
    "_step_inputs_kernel",
    "_skinny_kernel",
    "_matvec_kernel",
    "_fetch_kernel",
    "_deliver_kernel",
    "_bitmask_kernel",
    "_mask_kernel",
    "_advance_kernel",
    "_page_copy_kernel",
    "_page_blocks_kernel",
    "_gate_kernel",
    "_exact_linear_kernel",
    "_exact_attention_kernel",
    "_fold_kernel",
    "_log_sum_exp_kernel",
}


@pytest.mark.parametrize(
    ("backend", "architecture", "settings", "shared", "more"),
    [
        ("cuda", "90", "nvidia_h200", 227 * 1024, []),
        pytest.param("cuda", "90", "nvidia_h200", 227 * 1024, ["every"], marks=pytest.mark.slow),
        pytest.param("cuda", "80", "unmeasured", 99 * 1024, ["every"], marks=pytest.mark.slow),
        pytest.param("hip", "gfx942", "unmeasured", 64 * 1024, ["every"], marks=pytest.mark.slow),
    ],
)
def test_compiles(
    backend: str, architecture: str, settings: str, shared: int, more: list[str], tmp_path: Path
) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(HERE.parent.parent),
    }
    run = subprocess.run(
        [sys.executable, str(HERE / "triton_offline.py"), backend, architecture, settings, *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    reports = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert {report["kernel"] for report in reports} == KERNELS
    for report in reports:
        assert report["shared"] <= shared, report
        assert max(report["grid"][1:], default=1) <= 65535, report
        if backend == "cuda" and report["kernel"] in (
            "_decode_kernel",
            "_tree_kernel",
            "_extend_kernel",
            "_skinny_kernel",
        ):
            assert report["tensor_cores"], report
        if architecture == "90" and report["kernel"].startswith("_exact"):
            # what the equality of bits rests on: one kind of instruction, rows of 64, whatever the tile
            assert report["instructions"], report
            assert all(re.fullmatch(r"m64n\d+k16", shape) for shape in report["instructions"]), report
    assert any(report["tma"] for report in reports) is (settings == "nvidia_h200")


def test_one_variant_whatever_the_alignment(tmp_path: Path) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(HERE.parent.parent),
    }
    command = [sys.executable, str(HERE / "triton_offline.py"), "variants"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-3000:]
    reports = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    compiled: dict[str, set[str]] = {}
    for report in reports:
        compiled.setdefault(report["kernel"], set()).add(report["hash"])
    assert len(compiled) == 11
    assert {name: len(hashes) for name, hashes in compiled.items()} == dict.fromkeys(compiled, 1)
