"""Compiles every kernel for a GPU that need not be present and prints what came out, one JSON object a line.

Run as `python triton_offline.py cuda 90 nvidia_h200`: backend, architecture, settings file (may be missing); a
fourth word, `every`, has more variants of some kernels.
The wrappers are called as the engine calls them, with CPU tensors; a stand-in driver names the target and the
launch is left out. The interpreter accepts code that the compiler refuses, hence this.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from radixlang.kernels import (
    activation,
    automaton,
    chain,
    norm,
    page_blocks,
    page_copy,
    rope_write,
    sampling,
    tuning,
)
from radixlang.kernels.automaton_tables import Tables
from radixlang.kernels.bitmask import apply_bitmask
from radixlang.kernels.decode_attention import decode_attention, decode_projected
from radixlang.kernels.edits import Edits
from radixlang.kernels.exact_attention import exact_attention
from radixlang.kernels.exact_linear import exact_linear
from radixlang.kernels.extend_attention import extend_attention
from radixlang.kernels.gate import wait_open
from radixlang.kernels.log_sum_exp import log_sum_exp
from radixlang.kernels.mailbox import deliver, fetch
from radixlang.kernels.matvec import matvec
from radixlang.kernels.skinny_linear import skinny_add, skinny_linear
from radixlang.kernels.step_inputs import packed_size, step_inputs
from radixlang.kernels.tree_attention import tree_attention
from radixlang.kernels.tree_work import TreeWork, tree_sections, tree_size

BF16 = torch.bfloat16


class StandInDriver:
    """As much of a Triton driver as compiling needs."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_instead_of_launching() -> None:
    launch = JITFunction.run

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        assembly = kernel.asm.get("ptx", "")
        report = {
            "kernel": self.fn.__name__,
            "hash": kernel.hash,
            "grid": grid,
            "shared": kernel.metadata.shared,
            "instructions": sorted(set(re.findall(r"mma_?(?:async)?[a-z.]*\.(m\d+n\d+k\d+)", assembly))),
            "tensor_cores": "wgmma.mma_async" in assembly or "mma.sync" in assembly,
            "async_copies": "cp.async.cg" in assembly,
            "tma": "cp.async.bulk.tensor" in assembly,
        }
        print(json.dumps(report), flush=True)
        return kernel

    JITFunction.run = run


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def attention(
    chip: tuning.Chip, count: int, heads: int, kv_heads: int, dim: int, page: int, **options: Any
) -> None:
    q = torch.zeros((2 * count, heads + 2 * kv_heads, dim), dtype=BF16)[:, :heads]
    cache = torch.zeros((4, page, kv_heads, dim), dtype=BF16)
    tensors = (q, cache, cache, integers(8, 64), integers(2), integers(3), integers(2))
    queries = count * heads // kv_heads
    if queries <= tuning.MAX_DECODE_ROWS:
        tile = tuning.decode_tile(
            chip,
            batch=2,
            queries=queries if count == 1 else tuning.MAX_DECODE_ROWS,
            max_length=999,
            kv_heads=kv_heads,
            head_dim=dim,
            element_size=2,
            page_size=page,
        )
        decode_attention(*tensors, scale=0.1, max_query=count, tile=tile, **options)
    else:
        extend = tuning.extend_tile(chip, head_dim=dim, element_size=2, page_size=page)
        extend_attention(*tensors, scale=0.1, tile=extend, **options)


def projected(heads: int, kv_heads: int, dim: int, page: int, half: int, tile: tuning.DecodeTile) -> None:
    qkv = torch.zeros((3, (heads + 2 * kv_heads) * dim), dtype=BF16)
    cache = torch.zeros((4, page, kv_heads, dim), dtype=BF16)
    angles = (torch.zeros((3, half)), torch.zeros((3, half))) if half else None
    norm = torch.zeros(dim)
    decode_projected(
        qkv, cache, cache, integers(8, 64), integers(3), integers(3).long(), integers(3), heads=heads,
        angles=angles, q_weight=norm, k_weight=norm, scale=0.1, tile=tile,
    )  # fmt: skip


def tree(
    chip: tuning.Chip, heads: int, kv_heads: int, dim: int, page: int, tile: tuning.DecodeTile, **options: Any
) -> None:
    """A step that begins with what its rows share, and goes on with the decode kernel."""
    q = torch.zeros((3, heads + 2 * kv_heads, dim), dtype=BF16)[:, :heads]
    cache = torch.zeros((4, page, kv_heads, dim), dtype=BF16)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "element_size": 2, "page_size": page}
    shared = tuning.tree_tile(chip, **sizes)
    assert shared is not None
    work = TreeWork(*tree_sections(integers(tree_size(3)), 3))
    sinks = options.pop("sinks", None)
    prefixes = tree_attention(q, cache, cache, integers(8, 64), work, scale=0.1, tile=shared, **options)
    tensors = (q, cache, cache, integers(8, 64), integers(3), integers(4), integers(3))
    decode_attention(*tensors, scale=0.1, max_query=1, tile=tile, prefixes=prefixes, sinks=sinks, **options)


def automata() -> Tables:
    bytes_ = torch.zeros(9000, dtype=torch.uint8)
    following = torch.zeros((1024, 256), dtype=torch.int16)
    state, one, masks, ends = integers(9), integers(1024), integers(8, 160), integers(5001)
    return Tables(state, following, one, masks, one, one.to(torch.int8), bytes_, ends, span=512)


def variants() -> None:
    """Run the kernels of a step on index vectors that begin at any address; each shall be compiled once.

    Such vectors are views of one packed copy; a kernel that cared for their alignment would be compiled again
    while serving.
    """
    driver.set_active(StandInDriver(GPUTarget("cuda", 90, 32)))
    compile_instead_of_launching()
    chip = tuning.Chip(100, tuning.SAFE_SHARED_BYTES, {})
    q, cache = torch.zeros((80, 4, 64), dtype=BF16), torch.zeros((4, 16, 2, 64), dtype=BF16)
    table, angles, column, longs = integers(8, 64), torch.zeros((9, 32)), torch.zeros(9), integers(64).long()
    few = tuning.DecodeTile(8, 32, 4, 2)
    many = tuning.extend_tile(chip, head_dim=64, element_size=2, page_size=16)
    tables = automata()
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 64, "element_size": 2, "page_size": 16}
    shared = tuning.tree_tile(chip, **sizes)
    assert shared is not None
    for at in range(4):
        three, two = integers(64)[at : at + 3], integers(64)[at : at + 2]
        batch = (q, cache, cache, table, two, three, two)
        extend_attention(*batch, scale=0.1, tile=many)
        decode_attention(q[:2], *batch[1:], scale=0.1, max_query=1, tile=few)
        work = TreeWork(*tree_sections(integers(64 + tree_size(2))[at:], 2))
        tree_attention(q[:2], cache, cache, table, work, scale=0.1, tile=shared)
        places, kv = longs[at : at + 3], cache[0, :3]
        rope_write.rope_write(q[:3], kv, kv, angles, angles, places, places, cache, cache)
        rope_write.rotary_angles(places, angles[0], 1.0)
        home = integers(64)[at : at + 4].view(2, 2)
        more = {"rows": two, "next_token": longs, "home": home}
        more["edits"] = Edits(*[longs] * 3, *[column] * 3, integers(9))
        apply_bitmask(torch.zeros((2, 5000)), two, integers(2, 160))
        automaton.mask_logits(torch.zeros((2, 5000)), two, tables, integers(64)[at : at + 2])
        automaton.advance(longs[at : at + 2], two, integers(64)[at : at + 2], tables, integers(64)[at : at + 2])
        sampling.sample(torch.zeros((2, 5000)), column, integers(9), column, column, longs, two, **more)


def main(backend: str, architecture: str, settings: str, every: bool) -> None:
    """`every`: also what differs from a kernel compiled here in two things at once."""
    table = tuning.measured(settings)
    chip = tuning.Chip(100, int(table.get("shared_bytes", tuning.SAFE_SHARED_BYTES)), table)
    arch: int | str = int(architecture) if backend == "cuda" else architecture
    driver.set_active(StandInDriver(GPUTarget(backend, arch, 32 if backend == "cuda" else 64)))
    if backend == "cuda" and int(architecture) >= 90:
        chain.options = lambda: {"CHAINED": True, "launch_pdl": True}
    compile_instead_of_launching()
    attention(chip, 1, 32, 8, 128, 16)
    attention(chip, 8, 14, 2, 80, 128, window=100, softcap=3.0, sinks=torch.zeros(14))
    projected(16, 8, 128, 16, 64, tuning.DecodeTile(1, 32, 2, 2))
    projected(7, 1, 96, 7, 10, tuning.DecodeTile(4, 16, 4, 2, prefetch=True, evict_first=True))
    projected(4, 4, 64, 128, 0, tuning.DecodeTile(2, 64, 4, 2, prefetch=True))
    if table:  # tiles that only a measured chip has
        projected(16, 8, 128, 16, 128, tuning.DecodeTile(2, 64, 4, 3, keys_left=True))
        projected(16, 8, 128, 64, 64, tuning.DecodeTile(1, 64, 4, 3, tma=True))
        tree(chip, 32, 8, 128, 16, tuning.DecodeTile(1, 64, 2, 3, pack=4, chained=False, tma=True))
    tree(chip, 32, 8, 128, 16, tuning.DecodeTile(1, 32, 2, 2, pack=2))
    tree(chip, 28, 4, 64, 128, tuning.DecodeTile(4, 32, 2, 2, pack=2), softcap=3.0, sinks=torch.zeros(28))
    if every:
        attention(chip, 300, 32, 8, 128, 64)
    attention(chip, 300, 32, 8, 128, 128)
    attention(chip, 300, 32, 8, 64, 128, window=300)
    attention(chip, 300, 9, 3, 256, 7, window=100, softcap=3.0, sinks=torch.zeros(9))
    x, weight = torch.zeros((4, 4096), dtype=BF16), torch.zeros(4096, dtype=BF16)
    norm.rms_norm(x.view(4, 32, 128), weight[:128], 1e-5)
    norm.add_rms_norm(x, x, weight, 1e-5)
    activation.silu_mul(x)
    activation.gelu_tanh_mul(x)
    many = torch.zeros((70000, 4, 8), dtype=BF16)  # more tokens than a second dimension of a grid may have
    norm.rms_norm(many, weight[:8], 1e-5)
    activation.silu_mul(many.view(-1, 32))
    ids, angles = torch.zeros(70000, dtype=torch.int64), torch.zeros((9, 4))
    rope_write.rope_write(many, many, many, angles, angles, ids, ids, many[None], many[None])
    fused, cache = torch.zeros((3, 16, 80), dtype=BF16), torch.zeros((4, 16, 4, 80), dtype=BF16)
    angles, ids = torch.zeros((9, 16)), integers(3).long()
    q, k, v = fused.split([8, 4, 4], dim=1)
    rope_write.rope_write(q, k, v, angles, angles, ids, ids, cache, cache)
    rope_write.rope_write(
        q, k, v, angles, angles, ids, ids, cache, cache, q_weight=weight[:80], k_weight=weight[:80]
    )
    rope_write.rotary_angles(ids, angles[0], 1.0)
    step_inputs(integers(packed_size(3, 2)), ids, integers(3, 5), ids, ids, ids, ids[:2])
    fetch(integers(8, 2000), integers(2), integers(1500))
    deliver(integers(2, 5), integers(8, 20), integers(2))
    # these products are only done on measured chips; elsewhere it is enough that they compile
    stages = 4 if table else 2
    tile = tuning.SkinnyTile(64, 128, 2, 4, stages)
    skinny_linear(x, torch.zeros((8192, 4096), dtype=BF16), activation="silu", tile=tile)
    wide = torch.zeros((40, 100), dtype=BF16)
    stream = torch.zeros((40, 96), dtype=BF16)
    skinny_linear(wide, torch.zeros((96, 100), dtype=BF16), weight[:96], residual=stream, tile=tile)
    begun = skinny_add(x, torch.zeros((4096, 4096), dtype=BF16), residual=x, norm=weight.float(), tile=tile)
    skinny_linear(begun, torch.zeros((8192, 4096), dtype=BF16), eps=1e-5, activation="silu", tile=tile)
    begun = skinny_add(
        wide, torch.zeros((96, 100), dtype=BF16), residual=stream, norm=weight[:96].float(), tile=tile
    )
    skinny_linear(begun, torch.zeros((100, 96), dtype=BF16), eps=1e-5, tile=tile)
    early = tuning.SkinnyTile(32, 256, 2, 4, stages, early=True)
    skinny_linear(x, torch.zeros((8192, 4096), dtype=BF16), activation="silu", tile=early)
    small = tuning.MatvecTile(8, 4)
    matvec(x[:1], torch.zeros((96, 4096), dtype=BF16), norm=weight, activation="silu", tile=small)
    for one in (early, tile):  # an output, which Triton takes for a constant
        skinny_linear(x, torch.zeros((2, 4096), dtype=BF16), activation="silu", tile=one)
    matvec(x[:1], torch.zeros((2, 4096), dtype=BF16), activation="silu", tile=small)
    matvec(wide[:7], torch.zeros((96, 100), dtype=BF16), weight[:96], residual=stream[:7], tile=small)
    for tokens in (1, 100, 700):
        if every or tokens != 100:
            square = torch.zeros((4096, 4096), dtype=BF16)
            exact_linear(torch.zeros((tokens, 4096), dtype=BF16), square, chip=chip)
        if every or tokens == 100:
            gated = torch.zeros((8192, 1024), dtype=BF16)
            exact_linear(torch.zeros((tokens, 1024), dtype=BF16), gated, chip=chip, activation="silu")
    cases = ((1, 9, 80), (300, 32, 128), *([(1, 32, 128), (300, 9, 80)] * every))
    for count, heads, dim in cases:
        kv_heads = 8 if heads == 32 else 3
        cache = torch.zeros((4, 16, kv_heads, dim), dtype=BF16)
        q = torch.zeros((2 * count, heads, dim), dtype=BF16)
        more: dict[str, Any] = {} if heads == 32 else {"window": 100, "softcap": 3.0, "sinks": torch.zeros(9)}
        exact_attention(
            *(q, cache, cache, integers(8, 64), integers(2), integers(3), integers(2)),
            scale=0.1, max_query=count, max_length=999, chip=chip, **more,
        )  # fmt: skip
    log_sum_exp(torch.zeros((2, 9000)))
    cache = torch.zeros((4, 16, 4, 80), dtype=BF16)
    logits, column, ids = torch.zeros((2, 70000)), torch.zeros(2), integers(2).long()
    sampling.sample(logits, column, integers(2), column, column, ids, ids)
    sampling.sample(
        logits, column, integers(2), column, column, ids, ids,
        rows=integers(2), next_token=ids, home=integers(2, 2),
    )  # fmt: skip
    sampling.argmax(logits)
    edits = Edits(*[ids] * 3, *[column] * 3, integers(2))
    for drawn in (None, integers(2)):
        automaton.mask_logits(logits, integers(2), automata(), drawn)
        automaton.mask_logits(logits.bfloat16(), integers(2), automata(), drawn)
        automaton.advance(ids, integers(2), integers(2), automata(), drawn)
    for scores in (logits, logits.to(BF16)):
        sampling.sample(
            scores, column, integers(2), column, column, ids, integers(2),
            rows=integers(2), next_token=ids, home=integers(2, 2), edits=edits,
        )  # fmt: skip
    apply_bitmask(logits, integers(2), integers(2, 2188))
    page_copy.copy_pages(page_blocks.cache_addresses([cache]), integers(1), integers(1), cache[0].nbytes)
    blocks = torch.zeros(4, 2 * cache[0].nbytes, dtype=torch.uint8)
    for move in (page_blocks.gather_pages, page_blocks.scatter_pages):
        move(page_blocks.cache_addresses([cache, cache]), integers(1), blocks)
    wait_open(integers(4))


if __name__ == "__main__":
    variants() if sys.argv[1:] == ["variants"] else main(*sys.argv[1:4], every=sys.argv[4:] == ["every"])
