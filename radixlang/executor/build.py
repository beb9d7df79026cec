"""Puts the device column together: spec, platform, attention, weights, memory, one trial step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from radixlang.attention import BACKENDS, EXACT_BACKENDS, AttentionBackend
from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.executor import EngineShape, exactness
from radixlang.executor.host_tier import add_host_tier, check_host_tier, host_slots, kv_identity
from radixlang.executor.launch import DeviceExecutor
from radixlang.executor.shapes import Shape, graph_bytes, graph_shapes, prompt_tokens
from radixlang.log import get_logger
from radixlang.memory.host_pool import page_bytes
from radixlang.memory.kv_pool import KvPool
from radixlang.memory.request_table import RequestTable
from radixlang.memory.sizing import Memory, check_rows, kv_pages, wanted_pages
from radixlang.models import load_model, load_spec, weight_numbers
from radixlang.models.shards import Shards
from radixlang.models.spec import ModelSpec
from radixlang.parallel import connect
from radixlang.plan import FROM_TABLE, CopyPages, RowSetup, StepPlan
from radixlang.platforms import find_platform, place_rank
from radixlang.platforms.cpu import free_host_memory
from radixlang.registry import Registry
from radixlang.sampling.automata import Automata
from radixlang.sampling.batch import kernels_draw
from radixlang.sampling_params import RowSampling

log = get_logger(__name__)

MAX_RUNNING_CPU = 64
MAX_RUNNING_ACCELERATOR = 256
AUTOMATA = 16
"""constraints that rows can follow on the device at a time, where kernels draw"""
AUTOMATA_WITHOUT_KERNELS = 0
"""elsewhere: there is no wait for the host to be saved"""
TRIAL_TOKENS = 160
"""of a trial prompt: more than the kernels for few tokens take"""


class Spans:
    """Where the seconds of the start go."""

    def __init__(self) -> None:
        self.spans: dict[str, float] = {}
        self._since = time.monotonic()

    def note(self, name: str) -> None:
        """End the span `name`, which began with the end of the one before."""
        now = time.monotonic()
        self.spans[name] = round(now - self._since, 3)
        self._since = now


def build_executor(
    config: Config,
    progress: Callable[[str, int, int], None],
    rank: int = 0,
    meeting: str = "",
    check_page: Callable[[int], None] = lambda size: None,
) -> tuple[DeviceExecutor, EngineShape]:
    """Load the model of a resolved config and size everything. `progress(task, done, total)`; `check_page` is
    given the bytes of a page of KV before weights load, and may raise.

    All ranks of a tensor-parallel group do this at once, in the same order; they meet in the file `meeting`.

    Raises:
        ConfigError, ModelError: the flags or the checkpoint cannot work.
    """
    clock = Spans()
    whole = load_spec(config.model)
    ranks = config.device.tp_size
    if ranks > 1 and not meeting:
        raise ConfigError(f"--tp-size {ranks} needs a process for each rank, and here is one; use --tp-size 1.")
    spec = Shards(whole, rank, ranks).spec
    platform = find_platform(*place_rank(config.device.device, config.device.num_threads, rank, ranks))
    kind = platform.device.type
    dtype = _dtype(config.model.dtype) or platform.default_dtype(spec.checkpoint_dtype)
    kv_dtype = _dtype(config.device.kv_cache_dtype) or dtype
    clock.note("device")
    exact = config.device.enable_deterministic_inference
    if exact:
        exactness.check(spec, kind, dtype)
    name, backend = choose_attention(
        config.device.attention_backend, spec, kind, EXACT_BACKENDS if exact else BACKENDS
    )
    page_size = config.device.page_size
    running = config.schedule.max_running_requests or (
        MAX_RUNNING_CPU if kind == "cpu" else MAX_RUNNING_ACCELERATOR
    )
    wanted = wanted_pages(
        page_size=page_size,
        max_running=running,
        context_length=spec.context_length,
        max_total_tokens=config.device.max_total_tokens,
    )
    check_rows(running, wanted, spec.context_length, free_host_memory())
    kv_page = spec.kv_bytes_per_token(kv_dtype.itemsize) * page_size
    sharing = ranks if kind == "cpu" else 1  # ranks on a CPU share its memory

    def memory(weights: int) -> Memory:
        return Memory(
            kind == "cpu", platform.total_memory() // sharing, platform.free_memory() // sharing, weights
        )

    fraction = config.device.mem_fraction_static
    # On a CPU weights stay as they are stored; elsewhere, ranks have a share each and what they repeat.
    expected = 0 if kind == "cpu" else weight_numbers(whole) * dtype.itemsize // ranks
    most_pages = kv_pages(kv_page, memory(expected), wanted, fraction=fraction)
    check_host_tier(config, kind, kv_page, most_pages * kv_page, free_host_memory() // ranks)
    check_page(kv_page)
    parallel = connect(rank, ranks, meeting, platform.device)
    if ranks > 1:
        clock.note("ranks")
    model = load_model(
        whole,
        config.model,
        str(platform.device),
        dtype,
        lambda done, total: progress("loading weights", done, total),
        parallel,
        exact,
    )
    clock.note("weights")
    slots = AUTOMATA if kernels_draw(platform) else AUTOMATA_WITHOUT_KERNELS
    automata = Automata(running + 1, spec.vocab_size, platform, slots) if slots and not spec.encoder else None
    loaded = memory(model.weight_bytes)
    attention = backend(spec, page_size, platform.device)
    shapes: list[Shape] = []
    kernels = kind == "cuda" and find_spec("triton") is not None
    if kernels and not config.device.disable_cuda_graph and not spec.encoder:
        tokens = prompt_tokens(config.device, model.weight_bytes, spec.num_layers)
        # all ranks must run a step in the same shape
        tokens = 0 if attention.reads_back else parallel.least(tokens)
        tree = ranks == 1 and kv_dtype.itemsize in attention.tree
        forced = config.grammar.grammar_backend != "none" and not config.grammar.disable_jump_forward
        spread = forced and not config.model.skip_tokenizer_init
        shapes = graph_shapes(config.device, running, tokens, tree, spread)
    pages = kv_pages(
        kv_page,
        loaded,
        wanted,
        fraction=fraction,
        graph_bytes=graph_bytes(spec, shapes, dtype.itemsize) if shapes else 0,
    )
    pages = parallel.least(pages)
    context = min(spec.context_length, (pages - 1) * page_size)
    if context < spec.context_length:
        log.warning(
            "the KV pool holds %d tokens, so prompt and answer together may have %d instead of the model's %d",
            (pages - 1) * page_size,
            context,
            spec.context_length,
        )
    pool = KvPool(spec, pages, page_size, kv_dtype, platform.device)
    if kernels:
        pool.copy_by_kernel()
    table = RequestTable(running + 1, -(-context // page_size), platform.device)
    executor = DeviceExecutor(model, platform, pool, table, attention, automata)
    host_pages = 0
    whole_prompts = spec.encoder or (config.model.is_embedding and spec.pooling != "last")
    if whole_prompts:
        if config.cache.enable_hierarchical_cache or config.cache.hicache_storage_backend != "none":
            log.warning(
                "--enable-hierarchical-cache and storage change nothing: this model keeps no KV of prompts"
            )
    else:
        free = free_host_memory() // ranks
        host_pages = parallel.least(host_slots(config, kind, page_bytes(pool), pool.nbytes, free))
    if host_pages:
        add_host_tier(executor, host_pages, rank)
    clock.note("kv pool")
    progress("trial step", 0, 1)
    if kernels:
        from radixlang.kernels.ahead import compiled_ahead

        compiled_ahead(platform.device, lambda: try_out(executor))
    else:
        try_out(executor)
    if exact and kind != "cpu":
        exactness.prove(executor)
    progress("trial step", 1, 1)
    clock.note("trial step")
    if shapes:
        executor.capture(shapes, lambda done, total: progress("capturing graphs", done, total))
        clock.note("graphs")
    log.info("start-up: %s", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in clock.spans.items()))
    shape = EngineShape(
        num_pages=pages,
        page_size=page_size,
        max_rows=running + 1,
        context_length=context,
        vocab_size=spec.vocab_size,
        eos_ids=spec.eos_ids,
        encoder=spec.encoder,
        whole_prompts=whole_prompts,
        weight_bytes=model.weight_bytes,
        kv_bytes=pool.nbytes,
        device=f"{platform.device}: {platform.describe()}",
        dtype=str(dtype).removeprefix("torch."),
        attention_backend=name,
        load_seconds=round(sum(clock.spans.values()), 3),
        load_spans=clock.spans,
        architecture=spec.architecture,
        model_type=spec.family,
        hidden_size=spec.hidden_size,
        automaton_slots=automata.slots if automata is not None else 0,
        host_slots=host_pages,
        kv_identity=kv_identity(config, whole, kind, str(dtype), str(kv_dtype), rank) if host_pages else "",
    )
    return executor, shape


def _dtype(name: str) -> torch.dtype | None:
    """The dtype of a resolved flag, None for "auto"."""
    return None if name == "auto" else getattr(torch, name)


def choose_attention(
    wish: str, spec: ModelSpec, device: str, backends: Registry[type[AttentionBackend]] = BACKENDS
) -> tuple[str, Callable[[ModelSpec, int, torch.device], AttentionBackend]]:
    """The backend of `--attention-backend`; "auto" takes the first of `backends` that supports the model on
    the device.

    Raises:
        ConfigError: gives the reason of every backend that was asked, and the one that auto would take.
    """
    reasons = []
    for name in backends.names() if wish == "auto" else [wish]:
        try:
            backend: Any = backends.get(name)
        except ConfigError as error:
            if wish != "auto":
                raise
            reasons.append(f"{name}: {error}")
            continue
        reason = backend.supports(spec, device)
        if reason is None:
            return name, backend
        reasons.append(f"{name}: {reason}")
    if wish != "auto":
        with contextlib.suppress(ConfigError):  # none fits: then there is nothing to advise
            reasons.append(f"Use auto, which takes {choose_attention('auto', spec, device, backends)[0]}.")
    raise ConfigError(
        f"--attention-backend {wish} cannot run {spec.architecture} on {device}: {' '.join(reasons)}"
    )


def try_out(executor: DeviceExecutor) -> None:
    """Prompts short and long and, on a decoder, decode steps on row 1 and the first pages, which nobody owns yet:
    one of a token the device drew, one of a prompt's last token.

    Compiles what is compiled on first use, and lets a fault show before anything is served.
    """
    decoder = not executor.spec.encoder
    size = executor.pool.page_size
    room = executor.table.host_pages.shape[1] * size - 1
    few, many = min(2, room), min(TRIAL_TOKENS, room)
    grants = [(0, few, 0), (few, 1, FROM_TABLE), (few, 1, 0), (0, many, 0)] if decoder else [(0, few, 0)]
    pages = [(1, i, i + 1) for i in range((many + size) // size)] if decoder else [(1, 0, 1)]
    empty = np.zeros(0, np.int32)
    for step, (start, count, token) in enumerate(grants):
        plan = StepPlan(
            step=step,
            rows=np.array([1], np.int32),
            starts=np.array([start], np.int32),
            counts=np.array([count], np.int32),
            token_ids=np.full(count, token, np.int32),
            samples=np.array([decoder]),
            pools=np.array([not decoder]),
            new_pages=np.array(pages if step == 0 else [], np.int32).reshape(-1, 3),
            setups=(RowSetup(1, RowSampling(), empty, empty),) if step == 0 else (),
            masked=np.zeros(1 if decoder and step == 0 else 0, np.int32),
            copies=CopyPages(np.zeros(1, np.int32), np.ones(1, np.int32)) if decoder and step == 0 else None,
        )
        ticket = executor.launch(plan)
        executor.sample(ticket, np.full((1, -(-executor.spec.vocab_size // 32)), -1, np.int32))
        executor.result(ticket)
