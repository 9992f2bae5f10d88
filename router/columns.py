"""The tables that a decision walks: one row per worker's slot, and one per candidate.

Rows, not objects: the scoring of a whole pool is one compiled loop over them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CANDIDATE", "MAX_TOKENS", "WORKER", "CandidateRow", "Rows", "WorkerTable"]

Rows = npt.NDArray[np.void]

#: The most tokens that a candidate's columns can tell; a query that says more is scored as this many.
MAX_TOKENS = (1 << 31) - 1

#: By slot. prefill_tokens, encode_tokens, waiting: of booked requests without a first token. requests: all
#: booked ones. decode_blocks: their distinct blocks. engine_*: the engine's own word. *_ms_per_token: as
#: learned. capacity_blocks: 0 where unknown. spec: number of the worker's `KeySpec` in the pool.
#: is_grouped: several cache groups decide what of a prefix the engine takes.
WORKER = np.dtype(
    [
        ("heard_at", "f8"),
        ("kv_usage", "f8"),
        ("prefill_ms_per_token", "f8"),
        ("encode_ms_per_token", "f8"),
        ("capacity_blocks", "f8"),
        ("prefill_tokens", "i8"),
        ("encode_tokens", "i8"),
        ("waiting", "i8"),
        ("requests", "i8"),
        ("decode_blocks", "i8"),
        ("engine_running", "i8"),
        ("engine_waiting", "i8"),
        ("spec", "i4"),
        ("block_size", "i4"),
        ("is_live", "?"),
        ("drops_last", "?"),
        ("has_events", "?"),
        ("is_grouped", "?"),
    ],
    align=True,
)

#: One candidate of one decision; `CandidateScore` says what each is. credit_blocks: how many blocks may
#: earn anything. reason: 1 + the place in `DegradeReason`, 0 for none. encode_tokens: to be encoded.
CANDIDATE = np.dtype(
    [
        ("wait_ms", "f8"),
        ("encode_ms", "f8"),
        ("prefill_ms", "f8"),
        ("pressure_ms", "f8"),
        ("session_ms", "f8"),
        ("cost_ms", "f8"),
        ("slot", "i4"),
        ("block_size", "i4"),
        ("overlap", "i4"),
        ("expected", "i4"),
        ("lower", "i4"),
        ("shadow", "i4"),
        ("shadow_expected", "i4"),
        ("total", "i4"),
        ("media_overlap", "i4"),
        ("media_total", "i4"),
        ("credit_blocks", "i4"),
        ("encode_tokens", "i4"),
        ("encoder_cached", "i4"),
        ("reason", "u1"),
        ("has_events", "?"),
    ],
    align=True,
)


class CandidateRow(NamedTuple):
    """A `CANDIDATE` row in Python's own numbers: read at once, as each column alone costs as much."""

    wait_ms: float
    encode_ms: float
    prefill_ms: float
    pressure_ms: float
    session_ms: float
    cost_ms: float
    slot: int
    block_size: int
    overlap: int
    expected: int
    lower: int
    shadow: int
    shadow_expected: int
    total: int
    media_overlap: int
    media_total: int
    credit_blocks: int
    encode_tokens: int
    encoder_cached: int
    reason: int
    has_events: bool

    @property
    def predicted_tokens(self) -> int:
        """What the engine will report as cached."""
        return self.overlap * self.block_size

    @property
    def cached_tokens(self) -> int:
        """Those that are cached by then: what other requests are expected to bring counts."""
        return max(self.overlap, self.expected) * self.block_size


class WorkerTable:
    """`WORKER` rows by slot; grows with the slots, which others give."""

    def __init__(self) -> None:
        self.rows: Rows = np.zeros(0, WORKER)

    def ensure(self, num_slots: int) -> None:
        """Have rows for so many slots at least; new ones are all zeros."""
        missing = num_slots - len(self.rows)
        if missing > 0:
            self.rows = np.concatenate([self.rows, np.zeros(max(missing, len(self.rows)), WORKER)])

    def clear(self, slot: int) -> None:
        self.rows[slot] = np.zeros((), WORKER)

    def add(self, slot: int, column: str, amount: int) -> None:
        self.rows[column][slot] += amount

    def get(self, slot: int, column: str) -> Any:
        return self.rows[column][slot].item()
