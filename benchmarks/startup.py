"""Start-up times: import, --help, serve to ready. Medians of five.

python benchmarks/startup.py [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from common import ServerProcess, environment


def timed(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="default")
    args = parser.parse_args()
    code = "import time; t = time.perf_counter(); import radixlang; print(time.perf_counter() - t)"
    rows = {}
    rows["`import radixlang`, inside Python"] = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(args.runs)
    ]
    rows["`python -c 'import radixlang'`, the process"] = [
        timed(sys.executable, "-c", "import radixlang") for _ in range(args.runs)
    ]
    rows["`radixlang --help`"] = [
        timed(sys.executable, "-m", "radixlang.cli.main", "--help") for _ in range(args.runs)
    ]
    served = []
    for _ in range(args.runs):
        with ServerProcess(args.model) as server:
            served.append(server.ready_seconds)
    rows["serve to ready"] = served
    print(environment("startup"))
    print("| what | median s | smallest | largest |")
    print("|---|---|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f} |")


if __name__ == "__main__":
    main()
