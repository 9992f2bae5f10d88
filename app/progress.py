"""A line on stderr that says how far a long run has come: rewritten on a terminal, else now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

__all__ = ["ProgressLine"]

_BAR_CELLS = 24
_SECONDS_BETWEEN = {True: 0.2, False: 15.0}  # on a terminal, and elsewhere


class ProgressLine:
    """num_runs: in all. A run that is over before the first line was due is not mentioned."""

    def __init__(
        self, num_runs: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._is_terminal = self._out.isatty()
        self._num_runs = num_runs
        self._number = 0
        self._shown_at = clock()
        self._width = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wipe()

    def begin(self, title: str, num_requests: int) -> Callable[[int, float], None]:
        """One more run; returns what is to be told how many of its requests are left, and its time."""
        self._number += 1

        def note(left: int, simulated_s: float) -> None:
            now = self._clock()
            if now - self._shown_at < _SECONDS_BETWEEN[self._is_terminal]:
                return
            self._shown_at = now
            share = 1.0 - left / num_requests if num_requests else 1.0
            self._show(f"{self._bar(share)} {share:4.0%}  {title}, {simulated_s:.0f} s simulated")

        return note

    def end(self) -> None:
        self._wipe()

    def _bar(self, share: float) -> str:
        full = round(share * _BAR_CELLS)
        return f"run {self._number}/{self._num_runs} [{'#' * full}{'.' * (_BAR_CELLS - full)}]"

    def _show(self, text: str) -> None:
        if self._is_terminal:
            self._out.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._out.write(text + "\n")
        self._out.flush()

    def _wipe(self) -> None:
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
            self._width = 0
