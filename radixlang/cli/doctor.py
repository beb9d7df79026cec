"""`radixlang doctor`: what this machine has, what is missing, and the command that gets it.

A broken package must not break the doctor: packages are imported in a child process, all else is read from their
metadata and the operating system, and the report needs no package.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from radixlang import __version__
from radixlang.cli.parser import Parser
from radixlang.config import ServerConfig
from radixlang.hub_files import MODELS, cache_dir, cached_path

MIN_PYTHON = (3, 11)
PROBE_TIMEOUT = 120  # seconds; a cold import of torch from a slow disk takes long

#: extras whose packages are worth a line even when absent: package → (extra, what it is good for)
EXTRAS = {
    "numba": ("cpu", "fast kernels on CPUs"),
    "tokenspeed_fa3": ("hopper", "faster prompts on Hopper GPUs"),
    "gguf": ("gguf", "rare GGUF block types"),
    "huggingface_hub": ("hub", "models by hub id"),
    "pyyaml": ("yaml", "--config files in YAML"),
}

#: packages whose module is called otherwise than they are
MODULES = {"pyyaml": "yaml", "pyzmq": "zmq"}

#: what an engine imports if it is there, and dies of if it is broken
_IMPORTED = ("numba", "triton")

#: run in a child with modules to try; one JSON line per finding, so that a crash loses only what follows it
_PROBE = """
import importlib, json, sys
def say(**found): print(json.dumps(found), flush=True)
def load(name):
    try:
        return importlib.import_module(name), None
    except BaseException as error:
        return None, f"{type(error).__name__}: {error}"
for name in sys.argv[1:]:
    say(trying=name)
    if error := load(name)[1]:
        say(**{"broken " + name: error})
say(trying="torch")
import torch
say(torch=torch.__version__, torch_cuda=torch.version.cuda, torch_hip=torch.version.hip,
    torch_threads=torch.get_num_threads())
devices = []
for kind in ("cuda", "xpu"):
    module = getattr(torch, kind, None)
    if module is not None and module.is_available():
        for i in range(module.device_count()):
            p = module.get_device_properties(i)
            devices.append({"device": f"{kind}:{i}", "name": p.name, "memory": p.total_memory,
                            "capability": f"{getattr(p, 'major', 0)}.{getattr(p, 'minor', 0)}"})
say(devices=devices)
say(cpu_capability=torch.backends.cpu.get_cpu_capability())
for name in ("triton", "numba"):
    say(**{name: getattr(load(name)[0], "__version__", None)})
error = load("flash_attn_3._C")[1]
say(fa3=error is None, fa3_error=error)
"""

_CPU_FLAGS = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_bf16",
    "amx_int8",
)
_CPU_FLAGS_ARM = ("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2")


def probe(modules: Sequence[str] = (), python: str = sys.executable) -> dict[str, Any]:
    """Import `modules` and torch in a child: its findings, and one line for each failure, as `broken MODULE` or
    `torch_error`."""
    found: dict[str, Any] = {}
    try:
        child = subprocess.run(
            [python, "-c", _PROBE, *modules], capture_output=True, text=True, timeout=PROBE_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"torch_error": f"importing torch took longer than {PROBE_TIMEOUT} s"}
    for line in child.stdout.splitlines():
        try:
            found |= json.loads(line)
        except (ValueError, TypeError):
            continue  # a library printed something of its own
    culprit = found.pop("trying", "torch")
    if child.returncode != 0:
        lines = child.stderr.strip().splitlines() or [f"the process ended with code {child.returncode}"]
        if culprit in modules:
            return probe([m for m in modules if m != culprit], python) | {f"broken {culprit}": lines[-1]}
        found["torch_error"] = lines[-1]
    return found


def declared_requirements() -> list[str]:
    """What the installed package asks for; in a checkout that is not installed, what its pyproject.toml says."""
    try:
        return metadata.requires("radixlang") or []
    except metadata.PackageNotFoundError:
        pass
    try:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError):
        return []
    extras = project.get("optional-dependencies", {})
    return project["dependencies"] + [f"{line}; extra == '{name}'" for name, ls in extras.items() for line in ls]


def requirements() -> list[tuple[str, str, str]]:
    """(package, minimum version, extra or "") of every dependency."""
    out = []
    for line in declared_requirements():
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=\s*([0-9.]+))?", line)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if match:
            out.append((match[1], match[2] or "0", extra[1] if extra else ""))
    return out


def check_packages() -> tuple[dict[str, str | None], list[str]]:
    """Installed versions (None: absent) of all dependencies, and a line per core one that is missing or old."""
    versions: dict[str, str | None] = {}
    problems = []
    declared = requirements()
    if not declared:
        problems.append("radixlang is not installed properly: run `pip install -e .` in its checkout")
    for name, minimum, extra in declared:
        if extra and _normal(name) not in EXTRAS:
            continue
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
        have = versions[name]
        if not extra and (have is None or _numbers(have) < _numbers(minimum)):
            state = "is missing" if have is None else f"{have} is too old"
            problems.append(f"{name} {state}: pip install '{name}>={minimum}'")
    return versions, problems


def cpu() -> dict[str, Any]:
    """Name, cores this process may use, and the instruction sets that matter."""
    name, flags = platform.processor() or platform.machine(), set()
    info = Path("/proc/cpuinfo")
    if info.exists():
        text = info.read_text(errors="replace")
        if match := re.search(r"^model name\s*:\s*(.+)$", text, re.M):
            name = match[1]
        if match := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M):
            flags = set(match[1].split())
    known = _CPU_FLAGS_ARM if platform.machine() in ("aarch64", "arm64") else _CPU_FLAGS
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"name": name, "cores": cores, "instructions": [flag for flag in known if flag in flags]}


def memory() -> dict[str, int | None]:
    """Bytes: total and available of the machine, and the limit of the container if there is one."""
    total: int | None = None
    available: int | None = None
    limit: int | None = None
    info = Path("/proc/meminfo")
    if info.exists():
        values: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB", info.read_text(), re.M))
        total = int(values["MemTotal"]) * 1024
        available = int(values["MemAvailable" if "MemAvailable" in values else "MemFree"]) * 1024
    elif "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            bound = int(Path(path).read_text())
        except (OSError, ValueError):
            continue
        # The old hierarchy writes "no limit" as a huge number.
        limit = bound if total is None or bound < total else None
        break
    return {"total": total, "available": available, "limit": limit}


def port_is_free(port: int) -> bool:
    """True when a server could listen on `port` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def examine() -> dict[str, Any]:
    """Everything the doctor knows, as plain data. `problems` is empty when an engine can run."""
    versions, problems = check_packages()
    # FlashAttention-3 needs torch first, and the probe looks at both by itself.
    names = [_normal(name) for name, have in versions.items() if have and name != "torch"]
    modules = {name: MODULES.get(name, name) for name in names if name != "tokenspeed_fa3"}
    if find_spec("triton"):
        modules["triton"] = "triton"
    torch = probe(list(modules.values()))
    if sys.version_info < MIN_PYTHON:
        problems.append(f"Python {platform.python_version()} is too old: 3.11 or later is needed")
    broken = {name: torch[f"broken {module}"] for name, module in modules.items() if f"broken {module}" in torch}
    if "torch_error" in torch and torch["torch_error"] not in broken.values():  # else it is not to blame
        broken["torch"] = torch["torch_error"]
    fixes = {
        name: f"{name} does not work ({' '.join(error.split())}): pip install --force-reinstall {name}"
        for name, error in broken.items()
    }
    optional = set(EXTRAS) - set(_IMPORTED)
    problems += [text for name, text in fixes.items() if name not in optional]
    notes = [text for name, text in fixes.items() if name in optional]
    notes += [
        f"{name} is not installed ({use}): pip install 'radixlang[{extra}]'"
        for name, (extra, use) in EXTRAS.items()
        if name in {_normal(key) for key, value in versions.items() if value is None}
        and (extra != "hopper" or _is_hopper(torch))
    ]
    devices = torch.get("devices", [])
    if shutil.which("nvidia-smi") and not devices and "torch_error" not in torch:
        notes.append(
            "there is an NVIDIA driver, but this torch cannot use it: pip install --force-reinstall torch"
            f" (installed: {torch.get('torch')})"
        )
    port = ServerConfig().port
    free = port_is_free(port)
    if not free:
        notes.append(f"port {port} is in use: give `radixlang serve` another --port")
    home = cache_dir()
    models = {m.name: str(path) for m in MODELS if (path := cached_path(m))}
    if not models:
        notes.append("no model is here yet: radixlang pull (98 MB)")
    return {
        "version": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu() | {"torch_capability": torch.get("cpu_capability"), "threads": torch.get("torch_threads")},
        "memory": memory(),
        "devices": devices,
        "packages": versions | {"triton": torch.get("triton")},
        "torch": {key: torch.get(key) for key in ("torch", "torch_cuda", "torch_hip", "torch_error")},
        "would_use": would_use(torch),
        "cache": {"folder": str(home), "models": models, "free_bytes": _free(home)},
        "port": {"number": port, "free": free},
        "problems": problems,
        "notes": notes,
    }


def would_use(torch: dict[str, Any]) -> str | None:
    """The device and attention backend that `auto` takes here; None when torch does not work."""
    if "torch_error" in torch:
        return None
    devices = torch.get("devices", [])
    if devices:
        device = devices[0]["device"]
        if not torch.get("triton"):
            return f"{device}, attention backend torch_native (triton is missing)"
        if not _is_hopper(torch):
            return f"{device}, attention backend triton"
        if torch.get("fa3"):
            return f"{device}, attention backend fa3 (triton for models that fa3 cannot run)"
        return f"{device}, attention backend triton (fa3 is missing: {torch.get('fa3_error')})"
    if torch.get("numba"):
        return "cpu, attention backend cpu"
    return "cpu, attention backend torch_native (numba is missing)"


def _is_hopper(torch: dict[str, Any]) -> bool:
    """The first device, which an engine takes, is what the extra `hopper` is compiled for."""
    devices = torch.get("devices", [])
    return bool(devices) and devices[0].get("capability") == "9.0" and not torch.get("torch_hip")


def show(found: dict[str, Any]) -> None:
    """Print the findings for a person."""

    def row(name: str, text: str) -> None:
        print(f"{name:<17}  {text}")

    processor, room = found["cpu"], found["memory"]
    row("radixlang", found["version"])
    row("python", f"{found['python']['version']}  {found['python']['executable']}")
    row("system", found["system"])
    sets = " ".join(processor["instructions"]) or "no known vector extensions"
    row("cpu", f"{processor['name']}, {processor['cores']} cores; {sets}")
    limit = f", container limit {_gib(room['limit'])}" if room["limit"] else ""
    row("memory", f"{_gib(room['total'])}, {_gib(room['available'])} available{limit}")
    for device in found["devices"]:
        text = f"{device['name']}, {_gib(device['memory'])}, capability {device['capability']}"
        row(device["device"], text)
    if not found["devices"]:
        row("accelerator", "none found")
    row("would use", found["would_use"] or "nothing: see below")
    for name, version in sorted(found["packages"].items()):
        row(name, version or "-")
    cache = found["cache"]
    row("cache", f"{cache['folder']}, {_gib(cache['free_bytes'])} free on the disk")
    for name, path in cache["models"].items():
        row("", f"{name}  {path}")
    row(f"port {found['port']['number']}", "free" if found["port"]["free"] else "in use")
    for note in found["notes"]:
        print(f"note: {note}")
    for problem in found["problems"]:
        print(f"problem: {problem}")
    print("All that is needed is here." if not found["problems"] else "An engine cannot run yet.")


def run(argv: Sequence[str]) -> int:
    """Examine and report; returns 1 when something needed is missing."""
    parser = Parser(prog="radixlang doctor", description="Say what this machine has and what is missing.")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    args = parser.parse(argv)
    found = examine()
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 1 if found["problems"] else 0


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _free(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
