"""Faults of the router's own, told with their traceback, but not once for every request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Complaints"]

PERIOD_S = 60.0


class Complaints:
    """Logs what is raised, by place, once a minute at most; those in between are counted.

    clock: seconds, monotonic.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def note(self, place: str, error: Exception) -> None:
        self.counts[place] = self.counts.get(place, 0) + 1
        now, last = self._clock(), self._told_at.get(place)
        if last is not None and now - last < PERIOD_S:
            return
        self._told_at[place] = now
        self._log.error(
            "%s failed (%d times so far): %s: %s",
            place,
            self.counts[place],
            type(error).__name__,
            error,
            exc_info=error,
        )
