"""Traces of the running engine by torch's profiler, for chrome://tracing and Perfetto.

Starting and stopping wait for the platform's stream, so that a trace holds whole steps. Must not know messages or
requests.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from radixlang.errors import RequestError
from radixlang.log import get_logger
from radixlang.platforms import Platform

log = get_logger(__name__)

ACTIVITIES = ("CPU", "GPU")


def default_folder() -> Path:
    """Where traces go when nobody says."""
    return Path(tempfile.gettempdir()) / "radixlang-traces"


class Profile:
    """At most one trace at a time."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._running: Any = None
        self._path = Path()
        self._end: int | None = None

    def start(
        self,
        steps: int,
        output_dir: str | None = None,
        num_steps: int | None = None,
        activities: Sequence[str] | None = None,
        with_stack: bool = False,
        record_shapes: bool = False,
    ) -> dict[str, Any]:
        """Begin a trace. → `{"path": where it will be}`.

        `steps` counts the steps launched so far; after `num_steps` more the trace is written, without it
        `stop` does. The file appears when it is complete.

        Raises:
            RequestError: a trace is running, the folder cannot be written to, nothing can be recorded.
        """
        if self._running is not None:
            raise RequestError("A profile is running already; /stop_profile ends it.")
        if num_steps is not None and num_steps < 1:
            raise RequestError(f"num_steps must be at least 1, got {num_steps}.", "num_steps")
        kinds = self._kinds(ACTIVITIES if activities is None else activities)
        self._path = _new_file(Path(output_dir).absolute() if output_dir else default_folder())
        # All threads: the loop plans on one, the CPU's stream computes on another.
        threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        profiler = torch.profiler.profile(
            activities=kinds, with_stack=with_stack, record_shapes=record_shapes, experimental_config=threads
        )
        self._settle()
        profiler.start()
        self._running = profiler
        self._end = None if num_steps is None else steps + num_steps
        log.info("profiling into %s", self._path)
        return {"path": str(self._path), "num_steps": num_steps}

    def stop(self) -> dict[str, Any]:
        """Write the trace; nothing else runs meanwhile. → `{"path": where it is}`.

        Raises:
            RequestError: no trace is running.
        """
        if self._running is None:
            raise RequestError("No profile is running; /start_profile begins one.")
        profiler, self._running, self._end = self._running, None, None
        self._settle()
        profiler.stop()
        part = self._path.with_name(f".{self._path.name}")  # the suffix decides about compression: keep it
        profiler.export_chrome_trace(str(part))
        os.replace(part, self._path)
        log.info("wrote the profile %s", self._path)
        return {"path": str(self._path)}

    def launched(self, steps: int) -> None:
        """`steps` steps have been launched by now: ends a trace that has all it was asked for."""
        if self._end is not None and steps >= self._end:
            try:
                self.stop()
            except Exception as error:
                log.error("the profile %s could not be written", self._path, exc_info=error)

    def _settle(self) -> None:
        """Wait until the stream has done what was submitted; only the caller submits, so it stays empty."""
        self._platform.submit(lambda: None).wait()

    def _kinds(self, names: Sequence[str]) -> list[torch.profiler.ProfilerActivity]:
        unknown = [name for name in names if name not in ACTIVITIES]
        if unknown or not names:
            got = repr(unknown[0]) if unknown else "none"
            raise RequestError(f"activities may be {' and '.join(ACTIVITIES)}, got {got}.", "activities")
        kind = self._platform.device.type
        known = torch.profiler.ProfilerActivity
        names = list(dict.fromkeys(names))  # torch refuses one that is named twice
        found = {"CPU": known.CPU, "GPU": {"cuda": known.CUDA, "xpu": known.XPU}.get(kind)}
        # GPU beside CPU is what scripts always ask for; alone it would record nothing here.
        kinds = [activity for name in names if (activity := found[name]) is not None]
        if not kinds:
            raise RequestError(f"activities names GPU alone, but this engine runs on {kind}.", "activities")
        return kinds


def _new_file(folder: Path) -> Path:
    """A name for a trace in `folder`, which is made and tried.

    Raises:
        RequestError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # the latter: a name that no system call takes
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"output_dir {str(folder)!r} cannot be written to: {reason}.", "output_dir") from None
    stem = time.strftime("radixlang-%Y%m%d-%H%M%S")
    names = (f"{stem}{suffix}.trace.json.gz" for suffix in ("", *(f"-{i}" for i in range(2, 10_000))))
    return next(folder / name for name in names if not (folder / name).exists())
