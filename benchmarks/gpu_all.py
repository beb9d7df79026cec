"""Everything that one GPU is to show, part by part, each in a process of its own with a limit.

    python benchmarks/gpu_all.py [--parts NAME …] [--seconds 560] [--logs FOLDER]

Prints the tables of each part, what it took and how it ended; the whole output of a part is in the folder. A part
that has no time left is named and not begun, so that short leases of a machine can share the list. The parts, in
this order:

tests       kernels against their twins, compiled, eight processes at once
engine      tests of engines on the GPU (some want the real model)
llama, qwen steps, throughput, first tokens, admission, host work, prompts, the device's idle share
http        256 requests at once over HTTP
start       from process start to ready, cold and warm
tree        shared prefixes, with tree attention and without
exact       deterministic inference: equal logits in random company, and its cost
tiers       host memory below the KV pool
json        constrained requests beside others
soak        ten minutes at three times the KV memory
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]


def benchmark(name: str, *arguments: str) -> list[str]:
    return [str(ROOT / "benchmarks" / f"{name}.py"), *arguments]


def tests(*patterns: str) -> list[str]:
    return sorted(str(file) for pattern in patterns for file in (ROOT / "tests").glob(pattern))


SECTIONS = ("latency", "step", "throughput", "admission", "host", "ttft", "prefill", "overlap")
KERNEL_TESTS = tests(
    "kernels/test_triton_*.py", "kernels/test_gpu_library.py", "*/test_triton_ops.py", "*/test_triton_backend.py"
)
PARTS: dict[str, list[str]] = {
    "tests": [*PYTEST, "-n", "8", "--dist", "worksteal", *KERNEL_TESTS],
    "engine": [*PYTEST, *tests("engine/test_gpu*.py", "executor/test_gpu_masks.py", "executor/test_copies.py")],
    "llama": benchmark("gpu", "--models", "llama", "--sections", *SECTIONS),
    "qwen": benchmark("gpu", "--models", "qwen", "--sections", *SECTIONS[:3]),
    "http": benchmark("http_load", "--paths", "generate"),
    "start": benchmark("gpu", "--models", "llama", "--sections", "start"),
    "tree": benchmark("gpu_tree", "--sections", "engine"),
    "exact": benchmark("exact"),
    "tiers": benchmark("gpu_tiers"),
    "json": benchmark("gpu_json", "--turns", "3", "--firsts", "2"),
    "soak": benchmark("soak", "--minutes", "10"),
}
LEAST = 20.0
"""seconds without which no part is begun"""


def tables(text: str) -> list[str]:
    """The last of what is printed alike twice, or the last lines where there is no table."""
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith("|") and not line.startswith("|---")]
    return list(dict.fromkeys(rows)) or lines[-12:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--seconds", type=float, default=7200.0, help="for all parts together")
    parser.add_argument("--logs", type=Path, help="folder for the whole outputs")
    args = parser.parse_args()
    logs = args.logs or Path(tempfile.mkdtemp(prefix="gpu-all-"))
    logs.mkdir(parents=True, exist_ok=True)
    end, ended = time.monotonic() + args.seconds, {}
    for part in args.parts:
        begin = time.monotonic()
        if end - begin < LEAST:
            ended[part] = "not begun"
            continue
        log = logs / f"{part}.txt"
        with log.open("w") as output:
            try:
                command = [sys.executable, *PARTS[part]]
                done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, timeout=end - begin)
                ended[part] = f"ended with {done.returncode}"
            except subprocess.TimeoutExpired:
                ended[part] = "out of time"
        print(f"== {part}: {ended[part]} after {time.monotonic() - begin:.0f} s")
        print("\n".join(tables(log.read_text())), flush=True)
    print(f"all outputs are in {logs}")
    print("; ".join(f"{part}: {how}" for part, how in ended.items()))


if __name__ == "__main__":
    main()
