"""What the system says of processes and of the card, for benchmarks that watch other processes. Linux only."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Usage:
    """One process at one moment. `memory` in MiB: what it holds of its own, files and shared pages left out."""

    memory: float
    threads: int
    files: int


def usage(pid: int) -> Usage | None:
    """None when the process is gone."""
    try:
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return Usage(int(fields["RssAnon"].split()[0]) / 1024, int(fields["Threads"]), files)
    except (OSError, KeyError):  # a zombie has no memory
        return None


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that a process has used, its threads' included; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def family(pid: int) -> dict[int, str]:
    """A process and its children: id → the Python module it runs, or its command."""
    out = {pid: _name(pid)}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            out[int(entry.name)] = _name(int(entry.name))
    return out


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return "gone"
    return words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name


def device_memory() -> float | None:
    """MiB in use on the first NVIDIA card, by all processes; None without one. Needs no CUDA context."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    run = subprocess.run(command, capture_output=True, text=True)
    return float(run.stdout.split()[0]) if run.returncode == 0 else None
