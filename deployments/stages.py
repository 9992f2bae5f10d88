"""Where a request's time goes in an ingress replica, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

from ray.serve.metrics import Histogram

__all__ = ["Stage", "StageTimes", "Stopwatch"]

#: One request in so many is shown to Prometheus: Ray takes 5 us for a value, which all stages of all requests
#: would make a tenth of an ingress replica's own work.
SAMPLED = 8
BOUNDS_MS = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 6e4]


class Stage(StrEnum):
    """In the order of a request. Times are those that it waits, whatever else the replica does meanwhile."""

    PARSE = "parse"  # the body read, decoded and checked
    PROMPT = "prompt"  # template, token ids, the media's identities and sizes, the expanded view
    MEDIA = "media"  # files fetched and laid end to end; the renderer, where there is one
    DECIDE = "decide"  # the router's answer, keys included
    KEYS = "keys"  # block keys, within `decide`
    FIRST_TOKEN = "first_token"  # from the call of a replica until its first token is here
    STREAM = "stream"  # from there to the end


class StageTimes:
    """One per ingress replica. Prometheus: the histogram `ray_sightline_stage_ms`, by stage, of every eighth
    request that passes a stage, the first included.

    clock: seconds, of any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._histogram = Histogram(
            "sightline_stage_ms",
            description="Milliseconds that a request spent in a stage of its ingress replica.",
            boundaries=BOUNDS_MS,
            tag_keys=("stage",),
        )
        self._tags = {stage: {"stage": stage.value} for stage in Stage}
        self._counts = dict.fromkeys(Stage, 0)
        self._totals_ms = dict.fromkeys(Stage, 0.0)

    def note(self, stage: Stage, ms: float) -> None:
        if self._counts[stage] % SAMPLED == 0:
            self._histogram.observe(ms, tags=self._tags[stage])
        self._counts[stage] += 1
        self._totals_ms[stage] += ms

    def begin(self) -> Stopwatch:
        return Stopwatch(self, self._clock)

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """Requests and their mean milliseconds, by stage; stages without a request are left out."""
        return {
            stage.value: {"requests": count, "mean_ms": round(self._totals_ms[stage] / count, 3)}
            for stage, count in self._counts.items()
            if count
        }


class Stopwatch:
    """Runs from its making, or from the last stage that it noted."""

    def __init__(self, times: StageTimes, clock: Callable[[], float]) -> None:
        self._times = times
        self._clock = clock
        self._since = clock()

    def note(self, stage: Stage) -> None:
        now = self._clock()
        self._times.note(stage, (now - self._since) * 1e3)
        self._since = now
