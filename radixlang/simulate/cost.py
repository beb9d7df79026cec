"""What a step costs: a linear model of its work, fitted to recorded steps, and the file that keeps it.

Must not know schedulers.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from radixlang.bench.steps import Work
from radixlang.config.rules import MOST_RUNNING
from radixlang.errors import ConfigError
from radixlang.scheduler import SchedulerLimits

TOO_FEW = "too few steps, or too much alike, to tell what one costs; record more --sessions."
"""what is wrong with steps whose fit takes no time"""


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step and of each unit of its work; none is negative."""

    decode_step: float
    """a step without prompts"""
    prompt_step: float
    """a step with prompts"""
    prompt_token: float
    prompt_pair: float
    row: float
    """a row that computes one token"""
    context: float
    """a token whose KV such a row reads"""

    def seconds(self, work: Work) -> float:
        """The time of one step."""
        step = self.prompt_step if work.prompt_tokens else self.decode_step
        prompts = self.prompt_token * work.prompt_tokens + self.prompt_pair * work.prompt_pairs
        return step + prompts + self.row * work.rows + self.context * work.context

    def decode_seconds(self, rows: int, context: int, steps: int) -> np.ndarray:
        """float64 [steps]: of `steps` decode steps in a row, the first of which reads `context` tokens."""
        return self.decode_step + self.row * rows + self.context * (context + rows * np.arange(steps))

    @property
    def takes_time(self) -> bool:
        """Whether every step does. Few or like steps can be fitted without."""
        return self.decode_step + self.row > 0 and self.prompt_step + self.prompt_token > 0

    @classmethod
    def fit(cls, steps: Sequence[Sequence[float]]) -> CostModel:
        """The least squares with no negative coefficient, from rows of `Work`'s fields and seconds."""
        table = np.array(steps, np.float64).reshape(len(steps), len(Work._fields) + 1)
        prompts = table[:, 0] > 0
        features = np.column_stack([~prompts, prompts, table[:, :-1]]).astype(np.float64)
        return cls(*non_negative_least_squares(features, table[:, -1]).tolist())


def non_negative_least_squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The x >= 0 with the smallest |a x - b|, for a few columns: the best of all choices of columns whose ordinary
    least squares has no negative entry. (The optimum's positive entries are such a choice.)"""
    scale = np.maximum(np.abs(a).max(axis=0, initial=0.0), 1e-300)
    gram, right = (a / scale).T @ (a / scale), (a / scale).T @ b
    best, least = np.zeros(a.shape[1]), 0.0
    for size in range(1, a.shape[1] + 1):
        for chosen in itertools.combinations(range(a.shape[1]), size):
            index = list(chosen)
            x = np.linalg.lstsq(gram[np.ix_(index, index)], right[index], rcond=None)[0]
            loss = float(x @ gram[np.ix_(index, index)] @ x - 2 * x @ right[index])
            if (x >= 0).all() and loss < least:
                least = loss
                best = np.zeros(a.shape[1])
                best[index] = x
    return best / scale


@dataclass(frozen=True)
class EngineModel:
    """One engine as the simulator sees it: its limits, whether it overlaps, what its steps cost."""

    limits: SchedulerLimits
    cost: CostModel
    overlap: bool = True
    device: str = ""

    def write(self, path: Path) -> None:
        """Keep it as JSON.

        Raises:
            ConfigError: the file cannot be written.
        """
        data = {"kind": "costs", **dataclasses.asdict(self)}
        try:
            path.write_text(json.dumps(data, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"--save-costs {path} cannot be written: {error.strerror}.") from None

    @classmethod
    def read(cls, path: Path, flag: str = "--costs") -> EngineModel:
        """From the file that `flag` names: one of `write`, or fitted to one of `radixlang bench prefix --record`.

        Raises:
            ConfigError: the file cannot be read, or is neither.
        """
        data = read_json(path, flag)
        try:
            recorded = data["kind"] == "steps"
            if recorded:
                cost = CostModel.fit([step for run in data["runs"] for step in run["steps"]])
            else:
                cost = msgspec.convert(data["cost"], CostModel)
                CostModel(**data["cost"])  # as it was written: no name that means nothing
            SchedulerLimits(**data["limits"])
            limits = msgspec.convert(data["limits"], SchedulerLimits)
            model = cls(limits, cost, bool(data["overlap"]), str(data["device"]))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{flag} {path} holds a value that cannot be: {error}.") from None
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{flag} {path} is neither a record of `radixlang bench prefix` nor a file of --save-costs."
            ) from None
        check_limits(limits)
        for name, value in dataclasses.asdict(cost).items():
            if not 0 <= value < math.inf:
                raise ConfigError(f"{flag} {path}: {name} must be a number of seconds from 0 on, got {value}.")
        if not cost.takes_time:
            edited = "a step must take some time: decode_step, prompt_step, or their tokens."
            raise ConfigError(f"{flag} {path}: {TOO_FEW if recorded else edited}")
        return model


def check_limits(limits: SchedulerLimits) -> None:
    """Raises:
    ConfigError: no engine has such limits; names the flag.
    """
    pages = f" in whole pages of {limits.page_size}"
    for flag, value, least, most, unit in (
        ("page-size", limits.page_size, 1, 128, ""),
        ("max-total-tokens", limits.capacity, 8 * limits.page_size, 1 << 31, pages),
        ("context-length", limits.context_length, 2, 1 << 31, ""),
        ("max-running-requests", limits.max_running_requests, 1, MOST_RUNNING, ""),
    ):
        if not least <= value <= most:
            raise ConfigError(f"--{flag} must be between {least:,} and {most:,}, got {value:,}{unit}.")


def read_json(path: Path, flag: str = "--costs") -> Any:
    """The content of the file that `flag` names.

    Raises:
        ConfigError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error}.") from None
