"""The engine's loop: messages → schedule → launch → process the previous result.

That order is the overlap: step n + 1 is planned and launched before step n's result is asked for, so the
device never waits for the host. Must not know text, HTTP or tensors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from radixlang.channel import Receiver, Sender
from radixlang.engine.idle import Collector
from radixlang.engine.recorder import StepRecorder
from radixlang.errors import EngineDeadError, RadixLangError, RequestError
from radixlang.executor import Executor
from radixlang.log import get_logger
from radixlang.messages import Abort, Control, Drain, Failed, Generate, Opened, Reply, Stats, Stopped, pack_ids
from radixlang.plan import StepPlan
from radixlang.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from radixlang.executor.profile import Profile

log = get_logger(__name__)

STATS_INTERVAL = 0.5
"""seconds between two snapshots for the metrics page while steps run"""
IDLE_WAIT = 1.0
"""seconds an idle engine sleeps at most before it looks around"""
FIRST_MESSAGES, MORE_MESSAGES = 32, 128
"""messages that a turn handles: where the device has nothing to do, so that it soon has, and beside a step, so
that rows that decode do not stand still for a whole burst of requests"""
READING_SHARE = 0.1
"""a turn handles more of them, for this part of the time that the turn before took otherwise: where steps take
seconds, an abort or an urgent request behind a burst must not wait for several"""
PROMPT_TAIL = 16
"""prompt tokens the detokenizer gets: enough to begin in the middle of a word or a character"""


class EngineLoop:
    """Runs one scheduler over one executor until drained.

    `info` is what `server_info` answers with, beside the scheduler's figures. `recorder` times the parts of every
    turn, `profile` writes traces on demand, `collector` collects garbage (without one, Python does as it likes).
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        receiver: Receiver,
        sender: Sender,
        info: dict[str, Any],
        overlap: bool = True,
        log_interval: int = 0,
        clock: Callable[[], float] = time.time,
        recorder: StepRecorder | None = None,
        profile: Profile | None = None,
        collector: Collector | None = None,
    ) -> None:
        if recorder is not None:
            executor, scheduler, receiver, sender = recorder.around(executor, scheduler, receiver, sender)
        self.executor = executor
        self.scheduler = scheduler
        self.receiver = receiver
        self.sender = sender
        self.info = info
        self.overlap = overlap
        self.log_interval = log_interval
        self.clock = clock
        self.profile = profile
        self.collector = collector
        self.draining = False
        self._running: tuple[StepPlan, Any] | None = None
        self._stats_sent = 0.0
        self._told: Stats | None = None
        """the last snapshot"""
        self._received: deque[Any] = deque()
        """messages that no turn has handled yet"""
        self._turn_took = 0.0
        """seconds of the last turn, without reading"""
        self._answers: list[Any] = []
        """what the messages of this turn brought about, to be sent together"""
        self._handlers: dict[type, Callable[[Any], None]] = {
            Generate: self._on_generate,
            Abort: self._on_abort,
            Control: self._on_control,
            Drain: self._on_drain,
        }
        self._controls: dict[str, Callable[..., Any]] = {
            "flush_cache": self._flush_cache,
            "server_info": self._server_info,
            "cache_stats": self._server_info,
            "cache_tree": self.scheduler.cache_tree,
            "requests": self.scheduler.overview,
            "pins": self.scheduler.pins,
            "unpin": self.scheduler.unpin,
            "start_profile": self._start_profile,
            "stop_profile": self._stop_profile,
        }

    # ---- the loop ----

    def run(self) -> None:
        """Serve until a `Drain` has been obeyed. What is raised leaves at once: whoever catches it tells clients,
        and these must not wait for what the scheduler's threads have begun."""
        while not (self.draining and self._quiet):
            self.turn()
        self._send_stats(self._stats(self.clock()), idle=True)
        self.sender.send(Stopped())
        self.scheduler.close()

    @property
    def _quiet(self) -> bool:
        return self._running is None and not self._received and self.scheduler.idle

    def turn(self) -> None:
        """One round. Blocks only for messages when there is nothing to do, or for the device."""
        quiet = self._quiet
        messages = self.receiver.receive(IDLE_WAIT if quiet else 0)
        self._received += messages
        self._handle_messages(FIRST_MESSAGES if quiet else MORE_MESSAGES)
        began = self.clock()
        if self._answers:
            self.sender.send_all(self._answers)
            self._answers = []
        launched = self._launch()
        if not self.overlap and launched is not None:
            self._sample(launched)
            self._process(launched)
            launched = None
        previous, self._running = self._running, launched
        if previous is not None:
            self._process(previous)
        elif launched is None and not self._received and not self._quiet:
            # Requests wait for something outside (a constraint that is being compiled, a time-out): do not spin.
            time.sleep(0.001)
        if self._running is not None:
            self._sample(self._running)
        if self.profile is not None:
            self.profile.launched(self.scheduler.next_step)
        self._report()
        if self.collector is not None:
            self.collector.turn(quiet and not messages)  # waited in vain: no burst of requests is held up
        self._turn_took = self.clock() - began

    def _handle_messages(self, left: int) -> None:
        """All that wait, or of a burst `left` and what there is time for."""
        until = self.clock() + READING_SHARE * self._turn_took
        while self._received and (left > 0 or self.clock() < until):
            message = self._received.popleft()
            self._handlers[type(message)](message)
            left -= 1

    def _launch(self) -> tuple[StepPlan, Any] | None:
        plan = self.scheduler.schedule(self.clock())
        for message in self.scheduler.take_messages():
            self.sender.send(message)
        if plan is None:
            return None
        if self.log_interval and self.scheduler.next_step % self.log_interval == 0:
            self._log_progress()
        try:
            return plan, self.executor.launch(plan)
        except EngineDeadError:
            raise
        except Exception as error:
            self._abandon([plan], error)
            return None

    def _sample(self, step: tuple[StepPlan, Any]) -> None:
        """Give a launched step its masks: the tokens before it are known now."""
        plan, ticket = step
        if not len(plan.masked):
            return
        masks = self.scheduler.masks(plan)
        for message in self.scheduler.take_messages():
            self.sender.send(message)
        self.executor.sample(ticket, masks)

    def _process(self, step: tuple[StepPlan, Any]) -> None:
        plan, ticket = step
        try:
            result = self.executor.result(ticket)
        except EngineDeadError:
            raise
        except Exception as error:
            plans = [plan]
            if self._running is not None:
                # The step behind it took its tokens from the failed one: wait for it and drop it too.
                later, later_ticket = self._running
                self._running = None
                plans.append(later)
                try:
                    self.executor.result(later_ticket)
                except EngineDeadError:
                    raise
                except Exception as second:
                    log.debug("the following step failed as well: %s", second)
            self._abandon(plans, error)
            return
        for message in self.scheduler.process(plan, result):
            self.sender.send(message)

    def _abandon(self, plans: list[StepPlan], error: Exception) -> None:
        """A step died. The scheduler lets its requests try again one by one; one that fails alone is at fault."""
        log.error("step %d failed: %s: %s", plans[0].step, type(error).__name__, error, exc_info=error)
        if self._running is not None and self._running[0] not in plans:
            step, self._running = self._running, None
            self._process(step)
        sentence = str(error) if isinstance(error, RadixLangError) else f"{type(error).__name__}: {error}"
        for message in self.scheduler.abandon(plans, f"The engine failed on this request: {sentence}"):
            self.sender.send(message)

    # ---- messages ----

    def _on_generate(self, message: Generate) -> None:
        if self.draining:
            self._answers.append(Failed(message.rid, 503, "The server is shutting down."))
            return
        try:
            failed = self.scheduler.add(message, self.clock())
        except Exception as error:
            log.error("request %s could not be taken", message.rid, exc_info=error)
            failed = Failed(message.rid, 500, f"The engine could not take the request: {error}")
        if failed is not None:
            self._answers.append(failed)
        elif not message.embed:
            tail = message.input_ids[-4 * PROMPT_TAIL :] if message.input_ids else pack_ids([])
            self._answers.append(Opened(message.rid, tail, message.sampling))

    def _on_abort(self, message: Abort) -> None:
        # Sent even when nobody waits for it: the detokenizer closes the request's text by it.
        failed = self.scheduler.abort(message.rid, message.message)
        if failed is not None:
            self._answers.append(failed)

    def _on_control(self, message: Control) -> None:
        method = self._controls.get(message.method)
        if method is None:
            self._answers.append(Reply(message.id, False, f"Unknown control method {message.method!r}."))
            return
        try:
            self._answers.append(Reply(message.id, True, method(**message.arguments)))
        except RequestError as error:
            self._answers.append(Reply(message.id, False, str(error), error.status, error.param))
        except Exception as error:
            log.error("control %s failed", message.method, exc_info=error)
            self._answers.append(Reply(message.id, False, f"{message.method} failed: {error}"))

    def _on_drain(self, message: Drain) -> None:
        self.draining = True

    # ---- control table ----

    def _flush_cache(self) -> bool:
        if self._running is not None and not self.scheduler.rids():
            # Surplus tokens of the last request, or copies for the tiers: nobody waits for this step.
            step, self._running = self._running, None
            self._process(step)
        return self._running is None and self.scheduler.flush()

    def _server_info(self) -> dict[str, Any]:
        stats = self._stats(self.clock())
        return {**self.info, **stats.gauges, **stats.counters}

    def _start_profile(self, **options: Any) -> dict[str, Any]:
        return self._profiler().start(self.scheduler.next_step, **options)

    def _stop_profile(self) -> dict[str, Any]:
        return self._profiler().stop()

    def _profiler(self) -> Profile:
        if self.profile is None:
            raise RequestError("This engine has no profiler.")
        return self.profile

    # ---- telling others ----

    def _report(self) -> None:
        now = self.clock()
        if self._quiet:
            # What an idle engine shows changes too: by a flush, the end of a pin, a write to storage.
            stats = self._stats(now)
            if stats != self._told:
                self._send_stats(stats, idle=True)
            return
        if now - self._stats_sent >= STATS_INTERVAL:
            self._send_stats(self._stats(now), idle=False)

    def _log_progress(self) -> None:
        g = self._stats(self.clock()).gauges
        log.info(
            "step %d: %d running, %d waiting, %.0f%% of the KV pool in use, %.1f tokens/s",
            self.scheduler.next_step,
            g["num_running_reqs"],
            g["num_queue_reqs"],
            100 * g["token_usage"],
            g["gen_throughput"],
        )

    def _stats(self, now: float) -> Stats:
        """The scheduler's snapshot; requests that no turn has read yet wait as well."""
        stats = self.scheduler.stats(now)
        stats.gauges["num_queue_reqs"] += sum(type(message) is Generate for message in self._received)
        return stats

    def _send_stats(self, stats: Stats, idle: bool) -> None:
        self._stats_sent, self._told = self.clock(), stats
        self.sender.send(msgspec.structs.replace(stats, idle=idle, times=self.scheduler.take_times()))
