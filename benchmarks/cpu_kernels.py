"""The packed linear layers beside what torch offers, on the layer shapes of SmolLM2-135M: one table of ratios.

    python benchmarks/cpu_kernels.py [--threads 2] [--rows 1 8 32 512] [--seconds 1.0]

Random 4-bit weights in groups of 32 with minima. The candidates of a line take turns, each over several copies of
weights so that none stays in the first-level caches, and the fastest turn counts: on a busy machine that is the
one least disturbed. Each cell is the time of `F.linear` in float32 over the candidate's: larger is faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from radixlang.kernels.cpu.blocks import QuantBlocks
from radixlang.kernels.cpu.linear import pack

SHAPES = {
    "qkv": (960, 576),
    "output": (576, 576),
    "gate_up": (3072, 576),
    "down": (576, 1536),
    "head": (49152, 576),
}
GROUP = 32

Product = Callable[[torch.Tensor], torch.Tensor]


def random_blocks(outputs: int, inputs: int) -> QuantBlocks:
    scales, mins = (torch.randn(2, outputs, inputs // GROUP) / 50).half().float()
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    return QuantBlocks("q4", codes, scales, mins, GROUP)


def int4pack(blocks: QuantBlocks) -> Product:
    """torch's 4-bit product (bfloat16 activations): weight = scale · (code - 8) + zero."""
    assert blocks.mins is not None
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(blocks.codes.int(), 1)
    zeros = blocks.mins + 8 * blocks.scales
    both = torch.stack((blocks.scales, zeros), 2).transpose(0, 1).contiguous().bfloat16()
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, both)


def int8pack(blocks: QuantBlocks) -> Product:
    """torch's 8-bit product (bfloat16 activations), a scale per output."""
    dense = blocks.dequantize()
    scales = dense.abs().amax(1) / 127
    codes = (dense / scales[:, None]).round().to(torch.int8)
    scales = scales.bfloat16()
    return lambda x: torch.ops.aten._weight_int8pack_mm(x, codes, scales)


def candidates(outputs: int, inputs: int) -> dict[str, tuple[Product, torch.dtype]]:
    blocks = random_blocks(outputs, inputs)
    dense = blocks.dequantize()
    half = dense.bfloat16()
    found: dict[str, tuple[Product, torch.dtype]] = {
        "F.linear float32": (lambda x: F.linear(x, dense), torch.float32),
        "F.linear bfloat16": (lambda x: F.linear(x, half), torch.bfloat16),
        "int4pack": (int4pack(blocks), torch.bfloat16),
        "int8pack": (int8pack(blocks), torch.bfloat16),
        "packed, float32": (pack(blocks), torch.float32),
        "packed, integer": (pack(blocks, integer=True), torch.float32),
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 512])
    parser.add_argument("--seconds", type=float, default=1.0, help="time given to each line of the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{torch.backends.cpu.get_cpu_capability()}, {options.threads} threads; milliseconds and ratios\n")
    header: list[str] = []
    for name, (outputs, inputs) in SHAPES.items():
        copies = [candidates(outputs, inputs) for _ in range(1 if name == "head" else 6)]
        if not header:
            header = list(copies[0])
            print("| layer | rows | " + " | ".join(header) + " |\n" + "|---" * (len(header) + 2) + "|")
        for rows in options.rows:
            if name == "head" and rows > 64:
                continue
            x = torch.randn(rows, inputs)
            inputs_of = {torch.float32: x, torch.bfloat16: x.bfloat16()}
            best = dict.fromkeys(header, float("inf"))
            end, turn = time.perf_counter() + options.seconds, 0
            while time.perf_counter() < end or turn < 3:
                for key in header:
                    product, dtype = copies[turn % len(copies)][key]
                    begin = time.perf_counter()
                    product(inputs_of[dtype])
                    if turn:  # the first turn compiles
                        best[key] = min(best[key], time.perf_counter() - begin)
                turn += 1
            base = best["F.linear float32"]
            cells = [f"{1e3 * best[key]:.3f} ({base / best[key]:.2f}×)" for key in header]
            print(f"| {name} | {rows} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
