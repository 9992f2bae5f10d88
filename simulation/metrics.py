"""What became of the requests of a run, and what that comes to: percentiles, rates, shares."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from statistics import fmean

__all__ = ["GapHistogram", "Percentiles", "RequestRecord", "Summary", "percentile", "summarize"]

_SHARES = (0.5, 0.9, 0.99)


@dataclass(slots=True)
class RequestRecord:
    """One request. Times in simulated milliseconds; None: it never came to that.

    cached_tokens: the engine's own figure. predicted_tokens: the router's, on the worker that served it.
    regret_tokens: of the decision. attempts: decisions that it took. failure: why it was given up.
    """

    number: int
    arrived_ms: float
    prompt_tokens: int
    media_tokens: int
    output_tokens: int
    worker: str = ""
    first_token_ms: float | None = None
    ended_ms: float | None = None
    cached_tokens: int = 0
    predicted_tokens: int = 0
    regret_tokens: int = 0
    attempts: int = 0
    preemptions: int = 0
    generated: int = 0
    failure: str = ""

    @property
    def is_served(self) -> bool:
        return self.ended_ms is not None and not self.failure

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_token_ms is None else self.first_token_ms - self.arrived_ms

    @property
    def e2e_ms(self) -> float | None:
        return None if self.ended_ms is None else self.ended_ms - self.arrived_ms


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; 0 where there is nothing to measure."""

    p50: float
    p90: float
    p99: float
    mean: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles:
        ordered = sorted(values)
        if not ordered:
            return cls(0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = (round(percentile(ordered, share), 3) for share in _SHARES)
        return cls(p50, p90, p99, round(fmean(ordered), 3))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of ascending values, not empty: with linear interpolation between the two nearest."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


class GapHistogram:
    """Times between two tokens of one request, in classes 1 % wide: there are too many to keep.

    `FINEST_MS` and below are one class.
    """

    FINEST_MS = 0.01
    _WIDTH = log(1.01)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sum_ms = 0.0
        self.count = 0

    def add(self, gap_ms: float, times: int = 1) -> None:
        place = 0 if gap_ms <= self.FINEST_MS else 1 + int(log(gap_ms / self.FINEST_MS) / self._WIDTH)
        self._counts[place] = self._counts.get(place, 0) + times
        self._sum_ms += gap_ms * times
        self.count += times

    def percentiles(self) -> Percentiles:
        if not self.count:
            return Percentiles(0.0, 0.0, 0.0, 0.0)
        places = sorted(self._counts)
        below = list(accumulate(self._counts[place] for place in places))
        at = (places[bisect_left(below, share * self.count)] for share in _SHARES)
        p50, p90, p99 = (round(self._middle(place), 3) for place in at)
        return Percentiles(p50, p90, p99, round(self._sum_ms / self.count, 3))

    def _middle(self, place: int) -> float:
        return 0.0 if place == 0 else self.FINEST_MS * exp((place - 0.5) * self._WIDTH)


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Latencies in milliseconds, from the client's sending.

    duration_s: from the first arrival to the last end. hit_rate: cached tokens, of all prompt tokens, as
    the engines say. predicted_rate: the same as the router foretold. regret_rate: tokens that another worker
    held beyond the chosen one, of all prompt tokens, as the router saw it. imbalance: computing time of the
    busiest worker over the mean, less 1. rerouted: decisions beyond each request's first.
    """

    requests: int
    served: int
    failures: int
    rerouted: int
    preemptions: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    hit_rate: float
    predicted_rate: float
    regret_rate: float
    imbalance: float
    encoded_tokens: int
    prefilled_tokens: int


def summarize(
    records: Sequence[RequestRecord], gaps: GapHistogram, busy_ms: Sequence[float], encoded_tokens: int
) -> Summary:
    """busy_ms: computing time by worker."""
    served = [record for record in records if record.is_served]
    begin = min((record.arrived_ms for record in records), default=0.0)
    end = max((record.ended_ms or 0.0 for record in served), default=begin)
    duration_s = (end - begin) / 1e3
    prompt = sum(record.prompt_tokens for record in served)
    cached = sum(record.cached_tokens for record in served)
    return Summary(
        requests=len(records),
        served=len(served),
        failures=len(records) - len(served),
        rerouted=sum(max(0, record.attempts - 1) for record in records),
        preemptions=sum(record.preemptions for record in served),
        duration_s=round(duration_s, 3),
        requests_per_s=_share(len(served), duration_s),
        output_tokens_per_s=round(_share(sum(r.generated for r in served), duration_s), 1),
        ttft_ms=Percentiles.of(t for r in served if (t := r.ttft_ms) is not None),
        itl_ms=gaps.percentiles(),
        e2e_ms=Percentiles.of(t for r in served if (t := r.e2e_ms) is not None),
        hit_rate=_share(cached, prompt),
        predicted_rate=_share(sum(record.predicted_tokens for record in served), prompt),
        regret_rate=_share(sum(record.regret_tokens for record in served), prompt),
        imbalance=_imbalance(busy_ms),
        encoded_tokens=encoded_tokens,
        prefilled_tokens=prompt - cached,
    )


def _share(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _imbalance(busy_ms: Sequence[float]) -> float:
    mean = fmean(busy_ms) if busy_ms else 0.0
    return round(max(busy_ms) / mean - 1.0, 4) if mean else 0.0
