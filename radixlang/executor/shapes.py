"""The sizes of steps that are captured as graphs, and the memory they take. Imports neither torch nor Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixlang.kernels.tree_work import SLOTS

if TYPE_CHECKING:
    from radixlang.config import DeviceConfig
    from radixlang.models.spec import ModelSpec

MAX_BATCH = 512
MAX_TOKENS = 2048
LAUNCH_BYTES = 560e9
"""a layer's bytes of weights times tokens: what a large GPU computes while the layer's kernels are launched one by
one (0.7 ms)"""
FEW_ROWS = 32
"""prompt steps of no more rows have graphs of their own: logits and attention tiles of padding cost something"""
GRAPH_BYTES = 4 << 20
"""of device memory that a captured graph takes beside its tensors"""


@dataclass(frozen=True, order=True)
class Shape:
    """What a graph is captured for. As many rows as tokens: a decode step, one of tree attention if `tree`."""

    tokens: int
    rows: int
    tree: bool = False

    @property
    def decodes(self) -> bool:
        return self.tokens == self.rows


def decode_shapes(largest: int) -> list[Shape]:
    """Batch sizes of decode steps: dense where a padded row costs most, up to `largest` itself."""
    steps = [1, 2, 4, *range(8, 128, 8), *range(128, 256, 16), *range(256, largest, 32)]
    return [Shape(size, size) for size in [*(size for size in steps if size < largest), largest]]


def spread_shapes(largest: int) -> list[Shape]:
    """Batch sizes of steps of up to `largest` rows some of which bring several tokens (see `spread.py`), beyond
    those of decode steps."""
    return [shape for shape in decode_shapes(largest + largest // 2) if shape.rows > largest]


def tree_shapes(largest: int) -> list[Shape]:
    """Batch sizes of decode steps with tree attention, fewer than of others: what it saves is more than padding
    costs, and a padded row costs no attention."""
    steps = [8, *range(16, 64, 16), *range(64, largest, 32)]
    return [Shape(size, size, True) for size in [*(size for size in steps if size < largest), largest]]


def prompt_shapes(largest: int, rows: int) -> list[Shape]:
    """Shapes of steps with prompts, of up to `largest` tokens and `rows` rows.

    Sixteen tokens apart while reading the weights is most of a step's work, later an eighth of the tokens. A step
    with a prompt has fewer rows than tokens; shapes have at most three rows to four tokens.
    """
    steps = [*range(16, 128, 16), *range(128, 256, 32)]
    octave = 256
    while octave <= largest:
        steps.extend(range(octave, 2 * octave, octave // 8))
        octave *= 2
    shapes = set()
    for tokens in steps:
        if tokens <= largest:
            most = min(3 * tokens // 4, rows)
            shapes |= {Shape(tokens, most), Shape(tokens, min(most, FEW_ROWS))}
    return sorted(shapes)


def graph_shapes(
    config: DeviceConfig, running: int, prompt_tokens: int, tree: bool = False, spread: bool = False
) -> list[Shape]:
    """All shapes for up to `running` rows and steps with prompts of up to `prompt_tokens` tokens. `tree`: also for
    steps of tree attention; `spread`: also for steps in which all rows decode and some bring several tokens."""
    largest = min(running, config.cuda_graph_max_bs or MAX_BATCH)
    shapes = decode_shapes(largest) + prompt_shapes(prompt_tokens, min(running, MAX_BATCH))
    if spread and largest == running:
        shapes += spread_shapes(largest)
    return shapes + tree_shapes(largest) if tree and not config.disable_tree_attention else shapes


def prompt_tokens(config: DeviceConfig, weight_bytes: int, layers: int) -> int:
    """Most tokens of a prompt step in a graph: what the flag says, else as many as are computed in less time than
    it takes to launch the kernels, and no more than `MAX_TOKENS`."""
    if config.cuda_graph_max_bs_prefill is not None:
        return config.cuda_graph_max_bs_prefill
    return min(MAX_TOKENS, int(LAUNCH_BYTES / (weight_bytes / layers)))


def graph_bytes(spec: ModelSpec, shapes: list[Shape], element_bytes: int) -> int:
    """About what the graphs of these shapes take of the device's memory: the largest one's tensors and logits,
    which the others share, and the graphs themselves."""
    tokens, rows = max(shape.tokens for shape in shapes), max(shape.rows for shape in shapes)
    heads = spec.num_heads + 2 * spec.num_kv_heads
    width = 4 * spec.hidden_size + 3 * spec.intermediate_size + 2 * heads * spec.head_dim
    logits = rows * spec.vocab_size * (element_bytes + 4)
    slots = max((shape.rows for shape in shapes if shape.tree), default=0) * spec.num_heads * SLOTS
    prefixes = slots * (spec.head_dim + 1) * 4
    return tokens * width * element_bytes + logits + prefixes + len(shapes) * GRAPH_BYTES
