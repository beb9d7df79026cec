"""Put an engine together: executor from the device column, scheduler from the host column."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from radixlang.channel import Receiver, Sender
from radixlang.config import Config
from radixlang.engine.idle import Collector
from radixlang.engine.loop import EngineLoop
from radixlang.engine.recorder import StepRecorder
from radixlang.engine.tiers import build_tiers, check_storage
from radixlang.executor import EngineShape, Executor
from radixlang.grammar.manager import GrammarManager
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.scheduler.constraints import Constraints
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.scheduler import Scheduler
from radixlang.text.worker import load_for

if TYPE_CHECKING:
    from radixlang.platforms import Platform

OPERATIONS_PER_BYTE = 13_000
"""what a large accelerator computes in prompts while a byte comes over its bus: 640e12 and 50e9 in a second on an
H200 (benchmarks/RESULTS.md), and not very different on others"""


def engine_info(shape: EngineShape, started: float) -> dict[str, Any]:
    """What the other processes and `/server_info` may know of the engine; plain values only."""
    info = dataclasses.asdict(shape)
    info["eos_ids"] = list(shape.eos_ids)
    info["startup_time"] = round(time.time() - started, 3)
    return info


def default_chunk(shape: EngineShape) -> int:
    """Prompt tokens per step when no flag says: enough to keep the device busy, few enough that the requests
    decoding beside them do not stall for long."""
    return 512 if shape.device.startswith("cpu") else 8192


def least_load(shape: EngineShape) -> int:
    """Tokens from which on a prefix is fetched from host memory or storage: about as many as are computed in the
    time of the step that a fetch costs (benchmarks/load_sizes.py). An accelerator computes them while it reads the
    weights, on a CPU every token has its price."""
    return 16 if shape.device.startswith("cpu") else 64


def hidden_load(shape: EngineShape) -> float:
    """Tokens whose KV comes from host memory while one is computed. On a CPU a copy is a part of the step, and
    nobody gains by waiting for it."""
    if shape.device.startswith("cpu"):
        return math.inf
    kv_bytes = shape.kv_bytes / (shape.num_pages * shape.page_size)
    # A token takes two operations for each weight, that is one for each byte in a format of 16 bits.
    return shape.weight_bytes / (OPERATIONS_PER_BYTE * kv_bytes)


def scheduler_limits(config: Config, shape: EngineShape) -> SchedulerLimits:
    """What the scheduler must keep to: the flags, and what the device turned out to hold."""
    schedule, chunk = config.schedule, config.schedule.chunked_prefill_size
    seed, mixed = config.device.random_seed, schedule.enable_mixed_chunk
    return SchedulerLimits(
        num_pages=shape.num_pages,
        page_size=shape.page_size,
        context_length=shape.context_length,
        max_running_requests=shape.max_rows - 1,
        chunked_prefill_size=chunk if chunk is not None else default_chunk(shape),
        max_prefill_tokens=schedule.max_prefill_tokens,
        prefill_max_requests=schedule.prefill_max_requests,
        mixed=mixed if mixed is not None else shape.device.startswith("cpu"),
        max_prefill_steps=schedule.max_prefill_steps,
        max_queued_requests=schedule.max_queued_requests,
        queue_timeout=schedule.queue_timeout,
        eos_ids=shape.eos_ids,
        vocab_size=shape.vocab_size,
        policy=schedule.schedule_policy,
        preemption_threshold=preemption_threshold(config),
        low_values_first=schedule.schedule_low_priority_values_first,
        eviction=config.cache.radix_eviction_policy,
        radix_cache=not config.cache.disable_radix_cache,
        max_pinned_fraction=config.cache.max_pinned_fraction,
        conservativeness=schedule.schedule_conservativeness,
        random_seed=seed if seed is not None else secrets.randbits(63),
        prefetch=config.cache.hicache_storage_prefetch_policy,
        least_load=least_load(shape),
        hidden_load=hidden_load(shape) if shape.host_slots else 0.0,
        encoder=shape.whole_prompts,
    )


def preemption_threshold(config: Config) -> int | None:
    """Levels by which a waiting request must be above a running one to take its place; None: it never may."""
    schedule = config.schedule
    if schedule.schedule_policy != "priority" or schedule.disable_priority_preemption:
        return None
    return schedule.priority_scheduling_preemption_threshold


def constraints(config: Config, shape: EngineShape, platform: Platform) -> Constraints | None:
    """What serves structured output; None for a model that makes no text."""
    if config.model.skip_tokenizer_init or shape.encoder:
        return None

    def vocabulary() -> Vocabulary:
        tokenizer = load_for(config)
        assert tokenizer is not None
        return Vocabulary.of(tokenizer, shape.vocab_size)

    options = config.grammar
    manager = GrammarManager(vocabulary, options.grammar_backend, cache_bytes=options.grammar_cache_mb << 20)
    jump = not options.disable_jump_forward
    return Constraints(manager, jump, shape.automaton_slots, platform.host_rows)


def build_engine(
    config: Config,
    receiver: Receiver,
    sender: Sender,
    progress: Callable[[str, int, int], None],
    recorder: StepRecorder | None = None,
    followers: Sequence[Sender] = (),
    meeting: str = "",
    own_process: bool = False,
) -> EngineLoop:
    """Load the model and return the loop, ready to run. A `recorder` gets the times of every step.

    With `tp_size` above 1 this is the first rank: `followers` are the ways to the others, `meeting` is the file in
    which all meet. `own_process`: nothing else lives in this process, so garbage is collected when the engine is
    idle.

    Raises:
        ConfigError, ModelError: before anything is served.
    """
    started = time.time()
    check_storage(config)
    from radixlang.executor.build import build_executor

    device, shape = build_executor(config, progress, 0, meeting, lambda size: check_storage(config, size))
    # Import here, like the executor: torch comes with it.
    from radixlang.executor.profile import Profile
    from radixlang.platforms.recording import RecordingPlatform

    profile = Profile(device.platform)
    if recorder is not None:
        recorder.device = RecordingPlatform(device.platform)
        device.platform = cast("Platform", recorder.device)
    executor: Executor = device
    if followers:
        from radixlang.executor.follower import Leader

        executor = Leader(device, followers)
    return EngineLoop(
        executor,
        Scheduler(
            scheduler_limits(config, shape),
            constraints=constraints(config, shape, device.platform),
            tiers=build_tiers(config, shape, device),
        ),
        receiver,
        sender,
        engine_info(shape, started),
        overlap=not config.device.disable_overlap_schedule,
        log_interval=config.log.decode_log_interval,
        recorder=recorder,
        profile=profile,
        collector=Collector() if own_process else None,
    )
