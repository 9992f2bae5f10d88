"""A profile from measurements of a real endpoint.

Three sorts of rows, none of which needs to look inside the engine:

    prefill  the time to the first token of one request alone: `tokens` computed after `context` cached ones
    decode   the time between two tokens while `batch` requests decode, each with about `context` tokens
    encode   how much later the first token comes because of one item of `tokens` encoder tokens

Each sort is fitted by itself: least squares of the relative error, no coefficient below zero. What does not
belong to the engine (network, HTTP) ends up in the bases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError
from simulation.profile import Profile
from simulation.sequence import StepWork

__all__ = ["Fit", "FitError", "Kind", "Measurement", "fit"]

Kind = Literal["prefill", "decode", "encode"]


class FitError(SimulationError, ValueError):
    """The measurements do not settle a profile."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row; `ms` in milliseconds, above 0. `batch` counts for `decode`, `tokens` for the other two."""

    kind: Kind
    ms: float
    tokens: int = 0
    context: int = 0
    batch: int = 0

    @property
    def work(self) -> StepWork:
        """The step that was measured."""
        if self.kind == "decode":
            return StepWork(decode_requests=self.batch, decode_context=self.batch * self.context)
        if self.kind == "encode":
            return StepWork(
                encoder_items=1, encoder_tokens=self.tokens, encoder_squares=self.tokens * self.tokens
            )
        attended = self.tokens * self.context + self.tokens * self.tokens // 2
        return StepWork(prefill_tokens=self.tokens, prefill_context=attended)


@dataclass(frozen=True, slots=True)
class Fit:
    """`errors`: of each sort of row, the mean relative error that is left (0.1: ten percent)."""

    profile: Profile
    errors: dict[str, float]


_FIELDS: dict[Kind, tuple[str, str, str]] = {
    "prefill": ("prefill_base_ms", "prefill_ms_per_token", "prefill_ms_per_token_context"),
    "decode": ("decode_base_ms", "decode_ms_per_request", "decode_ms_per_context_token"),
    "encode": ("encode_base_ms", "encode_ms_per_token", "encode_ms_per_token2"),
}
_COLUMNS: dict[Kind, Callable[[StepWork], tuple[int, int, int]]] = {
    "prefill": lambda work: (1, work.prefill_tokens, work.prefill_context),
    "decode": lambda work: (1, work.decode_requests, work.decode_context),
    "encode": lambda work: (1, work.encoder_tokens, work.encoder_squares),
}

#: What explains times that all belong to one size: tokens cost, steps that decode cost as steps.
_PREFERRED: dict[Kind, tuple[int, ...]] = {"prefill": (1, 0, 2), "decode": (0, 1, 2), "encode": (1, 0, 2)}


def fit(measurements: Iterable[Measurement], *, name: str = "fitted", source: str = "") -> Fit:
    """The profile that comes closest. A sort of row that is missing leaves its times at 0.

    Raises:
        FitError: no row at all, a time that is not above 0, or fewer than three rows of a sort that is there.
    """
    rows = list(measurements)
    if not rows:
        raise FitError("no measurements")
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    for kind, fields in _FIELDS.items():
        chosen = [row for row in rows if row.kind == kind]
        if chosen:
            coefficients, errors[kind] = _fit_kind(kind, chosen)
            values |= dict(zip(fields, coefficients, strict=True))
    return Fit(Profile.model_validate({"name": name, "source": source, **values}), errors)


def _fit_kind(kind: Kind, rows: Sequence[Measurement]) -> tuple[list[float], float]:
    if len(rows) < 3:
        raise FitError(f"{len(rows)} {kind} rows for three numbers: measure at least three different ones")
    times = np.array([row.ms for row in rows])
    if times.min() <= 0:
        raise FitError(f"a {kind} row of {times.min()} ms: times are above 0")
    table = np.array([_COLUMNS[kind](row.work) for row in rows], dtype=float) / times[:, None]
    coefficients = _non_negative(table, _PREFERRED[kind])
    return coefficients.tolist(), float(np.abs(table @ coefficients - 1).mean())


def _non_negative(table: npt.NDArray[np.float64], preferred: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """x >= 0 with the least |table x - 1|: of all sets of columns the best whose own solution is >= 0.

    preferred: the order in which columns are tried; of equally good sets the first and smallest wins.
    Exact, as one of the sets is the true solution's support; there are 7 sets of three columns.
    """
    scale = np.abs(table).max(axis=0)
    scaled = table / np.where(scale > 0, scale, 1.0)
    best, least = np.zeros(table.shape[1]), np.inf
    for size in range(1, table.shape[1] + 1):
        for columns in itertools.combinations(preferred, size):
            part, *_ = np.linalg.lstsq(scaled[:, columns], np.ones(len(table)), rcond=None)
            left = float(np.square(scaled[:, columns] @ part - 1).sum())
            if part.min() >= 0 and left < least - 1e-12:
                best, least = np.zeros(table.shape[1]), left
                best[list(columns)] = part
    found: npt.NDArray[np.float64] = best / np.where(scale > 0, scale, 1.0)
    return found
