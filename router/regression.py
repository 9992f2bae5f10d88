"""Times, explained by what each is made of: Bayesian linear regression that forgets, robust to outliers.

    time = features @ shares

A feature is how long its part would take as configured, in milliseconds; a share is how much of that it
really takes. Beforehand that is what `PRIOR` says, give or take twice as much; least squares of the error,
relative to the time, do the rest, older measurements counting less.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["BOUND", "PRIOR", "Regression", "Vector"]

Vector = npt.NDArray[np.float64]

#: Shares of a fixed part, of prefill and of encoding.
PRIOR: Vector = np.array([0.0, 1.0, 1.0])
PRIOR.setflags(write=False)
_PRECISION = 0.25
#: The last two stay within this factor of the prior, both ways.
BOUND = 50.0
_LEAST, _MOST = PRIOR / BOUND, np.array([np.inf, BOUND, BOUND])
#: One time is thought to be off by this share of itself, until more is known.
_NOISE = 0.5
#: A time beyond e to this power of the expected one is an outlier, and counts as that much. Each further
#: one in a row, on the same side, may go as far again: what happens all the time is no outlier.
_LARGEST_STEP, _LONGEST_ROW = 0.5, 3


class Regression:
    """shares: as far as is known, shape (3,). num_seen: measurements."""

    def __init__(self) -> None:
        self.shares = PRIOR
        self.num_seen = 0
        self._precision: Vector = np.zeros((3, 3))
        self._weighted: Vector = np.zeros(3)
        self._variance: Vector = np.zeros(3)
        self._scatter = 1.0  # mean square of the errors, in units of the noise that was thought of
        self._row = _LONGEST_ROW  # outliers in a row, below 0 for short times; at first all is news

    def add(self, features: Vector, elapsed_ms: float, *, floor_ms: float, gain: float) -> None:
        """One more measurement, above 0; those before it count `gain` less.

        floor_ms: how much longer every time is taken to be, so that the shortest do not count the most.
        """
        expected = float(features @ self.shares)
        if expected <= 0:
            return
        seen = self._within_reason(elapsed_ms, expected)
        weight = float((_NOISE * (max(expected, seen) + floor_ms)) ** -2)
        self._precision = (1.0 - gain) * self._precision + weight * np.outer(features, features)
        self._weighted = (1.0 - gain) * self._weighted + weight * seen * features
        self.num_seen += 1
        newest = max(gain, 1.0 / (1 + self.num_seen))
        self._scatter += newest * (weight * (seen - expected) ** 2 - self._scatter)
        self._solve()

    def _within_reason(self, elapsed_ms: float, expected: float) -> float:
        step = math.log(elapsed_ms / expected)
        room = _LARGEST_STEP * (1 + min(abs(self._row), _LONGEST_ROW))
        side = (step > _LARGEST_STEP) - (step < -_LARGEST_STEP)
        self._row = self._row + side if side * self._row > 0 else side
        return expected * math.exp(max(-room, min(room, step)))

    def drift(self, kept: float) -> None:
        """What was measured turns into the prior, all but a share of `kept`."""
        self.shares = kept * self.shares + (1.0 - kept) * PRIOR
        self._weighted = kept * self._weighted + (1.0 - kept) * self._precision @ PRIOR

    def error(self, place: int) -> float:
        """The standard error of a share; 0 before anything was measured."""
        return math.sqrt(max(0.0, self._scatter * float(self._variance[place])))

    def _solve(self) -> None:
        # A prior that turned out far too low was a poor guess: as unsure as what is thought now is large.
        trust = _PRECISION / max(1.0, *self.shares[1:].tolist()) ** 2
        precision = self._precision + trust * np.eye(3)
        weighted = self._weighted + trust * PRIOR
        inverse = np.linalg.inv(precision)
        shares: Vector = inverse @ weighted
        if shares[0] < 0:  # nothing takes less than no time: the best without a fixed part
            inverse = np.zeros((3, 3))
            inverse[1:, 1:] = np.linalg.inv(precision[1:, 1:])
            shares = inverse @ weighted
        self.shares, self._variance = shares.clip(_LEAST, _MOST), np.diag(inverse)
