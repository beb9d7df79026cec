"""What every benchmark hands back: tables, and the line that says where, when and how they were made."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from radixlang import __version__
from radixlang.errors import ConfigError

Cell = str | int | float | None

#: packages whose version changes what is measured here
PACKAGES = ("torch", "triton", "numba", "numpy")
VECTORS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


@dataclass
class Table:
    """Figures with a title. Floats are printed with the digits that matter, and kept whole in the JSON."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [self.columns, ["---", *("---:" for _ in self.columns[1:])]]
        lines += [[shown(cell) for cell in row] for row in self.rows]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)])


@dataclass
class Report:
    """One run of one benchmark."""

    name: str
    device: str
    settings: dict[str, Any]
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    of_client: bool = False
    """another program was measured: versions of what computes here say nothing"""

    def environment(self) -> dict[str, Any]:
        """Date, command, versions, machine and device."""
        return {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": shlex.join(["radixlang", *_without_keys(sys.argv[1:])]),
            "versions": versions(() if self.of_client else PACKAGES),
            "machine": machine(),
            "device": self.device,
        }

    def markdown(self) -> str:
        """For people and for `benchmarks/RESULTS.md`."""
        where = self.environment()
        names = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
        head = f"{where['date']}, `{where['command']}`\n\n{names}; device {self.device}; {where['machine']}"
        parts = [f"### {self.name}", head, *(table.markdown() for table in self.tables)]
        return "\n\n".join([*parts, *self.notes])

    def data(self) -> dict[str, Any]:
        """The same, and the settings, as plain values."""
        tables = [
            {"title": table.title, "columns": list(table.columns), "rows": [list(row) for row in table.rows]}
            for table in self.tables
        ]
        out = {"benchmark": self.name, **self.environment(), "settings": self.settings, "tables": tables}
        return out | {"facts": self.facts, "notes": self.notes}

    def write(self, path: Path) -> None:
        """`data` as JSON.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            path.write_text(json.dumps(self.data(), indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"--json {path} cannot be written: {error.strerror}.") from None


def _without_keys(words: list[str]) -> list[str]:
    """A command line to be shown to others: `…` in the place of keys. Flags may be shortened."""
    out: list[str] = []
    hide = False
    for word in words:
        flag, equals, _ = word.partition("=")
        named = len(flag) > 2 and any(name.startswith(flag) for name in ("--api-key", "--admin-api-key"))
        out.append("…" if hide else f"{flag}=…" if named and equals else word)
        hide = named and not equals and not hide
    return out


def shown(cell: Cell) -> str:
    """A cell as text: three significant digits, thousands with commas."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    if cell == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(cell)))))
    return f"{cell:.{min(digits, 4)}f}"


def percentiles(values: Iterable[float], points: Sequence[float] = (50, 90, 99)) -> list[float | None]:
    """The given percentiles; None each when there are no values."""
    array = np.asarray(list(values), np.float64)
    return [float(np.percentile(array, point)) if array.size else None for point in points]


def random_prompts(
    count: int, length: int, vocab: int, seed: int | Sequence[int], shared: int = 0
) -> list[list[int]]:
    """`count` prompts of `length` random token ids below `vocab`; the first `shared` ids are the same in all."""
    generator = np.random.default_rng(seed)
    head = generator.integers(0, vocab, shared)
    return [[*head.tolist(), *generator.integers(0, vocab, length - shared).tolist()] for _ in range(count)]


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Of this package, Python, and the installed ones of `packages`."""
    out = {"radixlang": __version__, "python": platform.python_version()}
    for name in packages:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def machine() -> str:
    """The processor's name, the vector instructions that matter here, and how many cores this process may use."""
    name, shown = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    text = info.read_text(errors="replace") if info.exists() else ""
    if match := re.search(r"^model name\s*:\s*(.+)$", text, re.M):
        name = match[1]
    if match := re.search(r"^flags\s*:\s*(.+)$", text, re.M):
        known = set(match[1].split())
        shown = f" ({' '.join(part for part in VECTORS if part in known)})" if known & set(VECTORS) else ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}{shown}, {cores} cores"
