"""What to compute next, and what the results mean: requests, queue policies, admission, `schedule` and `process`.

Host column: must not import torch, and must not know text or HTTP.
"""

from __future__ import annotations

from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.policy import POLICIES
from radixlang.scheduler.request import Request
from radixlang.scheduler.scheduler import Scheduler

__all__ = ["POLICIES", "Request", "Scheduler", "SchedulerLimits"]
