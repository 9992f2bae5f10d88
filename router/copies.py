"""When a prefix that many ask for is due on one more worker.

Request by request it never pays to compute again what another worker holds, so a prefix that everybody shares
would stay on the few workers that began with it, and the others idle. A copy pays over all requests that will
use it. It is due while a prefix is under way on fewer workers than its share of all open requests makes of
the pool; a small group, of which few are open at a time, is never due.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["NO_COPY", "DueCopy", "SharedRun", "due_copy"]


class SharedRun(NamedTuple):
    """A part of a prompt's beginning that open requests share. end: of it, in blocks; sharers: open
    requests that begin with all of it, on how many workers."""

    end: int
    sharers: int
    num_workers: int


class DueCopy(NamedTuple):
    """blocks: of the prompt's beginning that are due on one more worker. share: of computing them, that one
    request has to answer for."""

    blocks: int = 0
    share: float = 1.0


NO_COPY = DueCopy()


def due_copy(
    runs: Iterable[SharedRun], *, num_open: int, num_workers: int, sharers_per_copy: float
) -> DueCopy:
    """The longest beginning that is due.

    runs: from the beginning on. num_open: requests under way in the pool. sharers_per_copy: no worker is due
    for fewer.
    """
    due = NO_COPY
    for run in runs:
        fair = min(run.sharers / max(1, num_open) * num_workers, run.sharers / sharers_per_copy)
        if run.num_workers + 1 <= fair:
            due = DueCopy(run.end, (run.num_workers + 1) / run.sharers)
    return due
