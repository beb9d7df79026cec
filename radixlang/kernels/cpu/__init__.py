"""Fast paths for the CPU: quantised linear layers, paged attention, fused small operations.

Tensors in, tensors out; knows nothing of models, layers or requests. The kernels are compiled by numba on first
use and kept on disk; where numba is missing, plain torch computes the same.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def available() -> bool:
    """Whether the compiled kernels can be used (numba is installed)."""
    return find_spec("numba") is not None
