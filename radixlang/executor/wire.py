"""Plans as bytes: how the first rank tells its followers what to launch. MessagePack; nothing is pickled.

Arrays travel as an extension value: one byte for the dtype, then the numbers as they lie in memory (all ranks are
on one host). A frame is `[kind, …]`: "launch" and a plan, "sample" with a step and its masks, or "stop".
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from radixlang.plan import (
    Action,
    AwaitCopies,
    CopyPages,
    Flush,
    LoadAutomaton,
    LoadPages,
    LoadTokens,
    LogprobWish,
    RowSetup,
    StepPlan,
    StorePages,
    Transfer,
)
from radixlang.sampling_params import RowSampling

Kind: TypeAlias = Literal["launch", "sample", "stop"]

_ARRAY = 1
_DTYPES: dict[bytes, np.dtype[Any]] = {
    b"i": np.dtype(np.int32),
    b"h": np.dtype(np.int16),
    b"B": np.dtype(np.uint8),
    b"?": np.dtype(np.bool_),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_ACTIONS: dict[str, type[Action]] = {kind.__name__: kind for kind in (CopyPages, Flush, LoadTokens, LoadAutomaton)}
_TRANSFERS: dict[str, type[Transfer]] = {kind.__name__: kind for kind in (StorePages, LoadPages, AwaitCopies)}


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgspec.msgpack.Ext(_ARRAY, _CODES[value.dtype] + value.tobytes())
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"A plan holds a {type(value).__name__}, which has no form on the wire.")


def _decode(code: int, data: memoryview) -> np.ndarray:
    assert code == _ARRAY
    # A copy: the array must not hold the whole frame, and plans may be written from unaligned bytes.
    return np.frombuffer(data[1:], _DTYPES[bytes(data[:1])]).copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode)
_decoder = msgspec.msgpack.Decoder(ext_hook=_decode)


def launch_frame(plan: StepPlan) -> bytes:
    """The frame that asks for `plan` to be launched."""
    actions = [(type(action).__name__, action) for action in plan.actions]
    transfers = [(type(transfer).__name__, transfer) for transfer in plan.transfers]
    return _encoder.encode(("launch", plan, actions, transfers))


def sample_frame(step: int, masks: np.ndarray | None) -> bytes:
    """The frame with the masks [G, words] of a launched step."""
    rows = 0 if masks is None else len(masks)
    return _encoder.encode(
        ("sample", step, rows, None if masks is None else np.ascontiguousarray(masks, np.int32))
    )


def stop_frame() -> bytes:
    """The frame after which nothing comes."""
    return _encoder.encode(("stop",))


def parse(frame: bytes) -> tuple[Kind, Any]:
    """("launch", plan), ("sample", (step, masks)) or ("stop", None)."""
    kind, *rest = _decoder.decode(frame)
    if kind == "launch":
        return kind, _plan(*rest)
    if kind == "sample":
        step, rows, masks = rest
        return kind, (step, None if masks is None else masks.reshape(rows, -1))
    return kind, None


def _plan(fields: dict[str, Any], actions: list[Any], transfers: list[Any]) -> StepPlan:
    return StepPlan(
        **fields
        | {
            "new_pages": fields["new_pages"].reshape(-1, 3),
            "setups": tuple(
                RowSetup(
                    **setup
                    | {
                        "sampling": msgspec.convert(setup["sampling"], RowSampling),
                        "automaton": None if setup["automaton"] is None else tuple(setup["automaton"]),
                    }
                )
                for setup in fields["setups"]
            ),
            "logprobs": tuple(
                LogprobWish(**wish | {"token_ids": tuple(wish["token_ids"])}) for wish in fields["logprobs"]
            ),
            "actions": tuple(_ACTIONS[name](**values) for name, values in actions),
            "transfers": tuple(_TRANSFERS[name](**_tuples(values)) for name, values in transfers),
            "copies": None if fields["copies"] is None else CopyPages(**fields["copies"]),
        }
    )


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Lists become the tuples that they were."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
