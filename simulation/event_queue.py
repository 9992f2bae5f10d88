"""Simulated time: what is to happen, in the order in which it does."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

__all__ = ["EventQueue"]

Action = Callable[..., None]


class EventQueue:
    """Actions by time; those of the same time in the order in which they were planned.

    Nothing here looks at a clock: `now_ms` is the time of the action that runs.
    """

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.num_done = 0
        self._planned: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._planned)

    def at(self, time_ms: float, action: Action, *args: Any) -> None:
        """Plan `action(*args)`. What is planned for the past happens now."""
        self._number += 1
        heappush(self._planned, (max(time_ms, self.now_ms), self._number, action, args))

    def after(self, delay_ms: float, action: Action, *args: Any) -> None:
        self.at(self.now_ms + delay_ms, action, *args)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Until nothing is planned, or `is_over` says so after an action."""
        planned = self._planned
        while planned:
            self.now_ms, _, action, args = heappop(planned)
            action(*args)
            self.num_done += 1
            if is_over():
                return

    def clock_s(self) -> float:
        """For whoever reads a monotonic clock in seconds."""
        return self.now_ms / 1e3
