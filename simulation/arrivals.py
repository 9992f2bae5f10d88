"""When requests come: as a Poisson process, at the times of a trace, or from users who wait and think.

The random source is passed in; all times are milliseconds from the beginning of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from simulation.prompts import Session, Turn

__all__ = ["closed_loop", "poisson", "replay", "think"]


def poisson(sessions: Iterable[tuple[Turn, ...]], rate_per_s: float, random: Random) -> tuple[Session, ...]:
    """Sessions that begin independently of each other, `rate_per_s` of them on average."""

    def started() -> Iterator[Session]:
        now_ms = 0.0
        for turns in sessions:
            now_ms += random.expovariate(rate_per_s) * 1e3
            yield Session(now_ms, turns)

    return tuple(started())


def closed_loop(
    users: Sequence[tuple[Turn, ...]], think_s: float, random: Random, ramp_s: float = 1.0
) -> tuple[Session, ...]:
    """Users who send their next turn when they have read the answer: exponential pauses of mean `think_s`.

    ramp_s: the users begin evenly spread over this time.
    """
    gap_ms = ramp_s * 1e3 / max(1, len(users))
    return tuple(
        Session(place * gap_ms, tuple(think(turns, think_s, random))) for place, turns in enumerate(users)
    )


def think(turns: Iterable[Turn], mean_s: float, random: Random) -> Iterator[Turn]:
    """The same turns, each but the first after a pause."""
    for place, turn in enumerate(turns):
        pause_ms = random.expovariate(1.0 / mean_s) * 1e3 if place and mean_s > 0 else 0.0
        yield replace(turn, think_ms=pause_ms)


def replay(
    sessions: Iterable[Session], *, speed: float = 1.0, limit: int | None = None
) -> tuple[Session, ...]:
    """At the times of a trace, from 0, `speed` times as fast.

    limit: requests, of the sessions that begin first; the last of these sessions may lose turns.
    """
    ordered = sorted(sessions, key=lambda session: session.start_ms)
    kept = ordered if limit is None else list(_first(ordered, limit))
    begin = kept[0].start_ms if kept else 0.0
    return tuple(replace(session, start_ms=(session.start_ms - begin) / speed) for session in kept)


def _first(sessions: Iterable[Session], num_requests: int) -> Iterator[Session]:
    left = num_requests
    for session in sessions:
        if left <= 0:
            return
        yield replace(session, turns=session.turns[:left])
        left -= len(session.turns)
