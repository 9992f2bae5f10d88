"""From samples to figures. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from app.load.samples import Sample

__all__ = ["Overlap", "Spread", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a set of values, in ms or tokens. Percentiles are linear between neighbours (numpy's)."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None of nothing."""
        numbers = np.fromiter(values, dtype=np.float64)
        if not numbers.size:
            return None
        p50, p90, p99 = (float(p) for p in np.percentile(numbers, (50, 90, 99)))
        return cls(numbers.size, float(numbers.mean()), p50, p90, p99, float(numbers.max()))


@dataclass(frozen=True, slots=True)
class Overlap:
    """Sums of `held/asked` receipts, in blocks."""

    held: int = 0
    asked: int = 0

    @classmethod
    def of(cls, receipts: Iterable[str]) -> Overlap:
        held = asked = 0
        for receipt in receipts:
            left, _, right = receipt.partition("/")
            if left.isdecimal() and right.isdecimal():
                held, asked = held + int(left), asked + int(right)
        return cls(held, asked)


@dataclass(frozen=True)
class Summary:
    """window_s: the time that rates refer to. ended_in_window: good requests that ended in it.

    latency_ms: by name; `ttft` and `e2e` count from when a request was due, `..._from_sent` from when it was
    sent (the same in a closed loop). itl: the mean of each request; gap: between pieces of content.
    """

    window_s: float
    requests: int
    good: int
    ended_in_window: int
    rate: float
    output_tokens_rate: float
    latency_ms: dict[str, Spread | None]
    late_ms: Spread | None
    prompt_tokens: Spread | None
    output_tokens: Spread | None
    cached_share: float | None
    errors: dict[str, int]
    statuses: dict[str, int]
    bytes_out: int
    bytes_in: int
    resent: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    overlap: Overlap = Overlap()
    media_overlap: Overlap = Overlap()
    turns_ttft_p50_ms: dict[int, float] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        return asdict(self)


def summarize(samples: Sequence[Sample], began: float, window_s: float) -> Summary:
    """Latencies are those of good requests; rates those of requests that ended within the window."""
    good = [s for s in samples if s.is_good]
    inside = [s for s in good if s.ended <= began + window_s]
    tokens = sum(_outputs(s) for s in inside)
    return Summary(
        window_s=window_s,
        requests=len(samples),
        good=len(good),
        ended_in_window=len(inside),
        rate=len(inside) / window_s if window_s else 0.0,
        output_tokens_rate=tokens / window_s if window_s else 0.0,
        latency_ms=_latencies(good),
        late_ms=Spread.of((s.sent - s.intended) * 1000 for s in samples),
        prompt_tokens=Spread.of(s.prompt_tokens for s in good if s.prompt_tokens is not None),
        output_tokens=Spread.of(_outputs(s) for s in good),
        cached_share=_cached_share(good),
        errors=dict(Counter(s.error for s in samples if s.error).most_common()),
        statuses=dict(Counter(str(s.status or "none") for s in samples).most_common()),
        bytes_out=sum(s.bytes_out for s in samples),
        bytes_in=sum(s.bytes_in for s in samples),
        resent=sum(s.is_resent for s in samples),
        workers=_tally(good, "worker"),
        reasons=_tally(good, "reason"),
        overlap=Overlap.of(s.receipts.get("overlap", "") for s in good),
        media_overlap=Overlap.of(s.receipts.get("media-overlap", "") for s in good),
        turns_ttft_p50_ms=_by_turn(good),
    )


def _latencies(good: Sequence[Sample]) -> dict[str, Spread | None]:
    gaps: array[float] = array("d")
    for sample in good:
        gaps.extend((b - a) * 1000 for a, b in zip(sample.tokens, sample.tokens[1:], strict=False))
    return {
        "ttft": Spread.of((s.first - s.intended) * 1000 for s in good if s.first is not None),
        "ttft_from_sent": Spread.of(s.ttft_ms for s in good if s.ttft_ms is not None),
        "itl": Spread.of(s.itl_ms for s in good if s.itl_ms is not None),
        "gap": Spread.of(gaps),
        "e2e": Spread.of((s.ended - s.intended) * 1000 for s in good),
        "e2e_from_sent": Spread.of((s.ended - s.sent) * 1000 for s in good),
    }


def _outputs(sample: Sample) -> int:
    return sample.output_tokens if sample.output_tokens is not None else len(sample.tokens)


def _cached_share(good: Sequence[Sample]) -> float | None:
    """Of prompt tokens, where the endpoint tells it of any; an answer without it then counts as none."""
    if all(s.cached_tokens is None for s in good):
        return None
    total = sum(s.prompt_tokens or 0 for s in good)
    return sum(s.cached_tokens or 0 for s in good) / total if total else None


def _tally(good: Sequence[Sample], receipt: str) -> dict[str, int]:
    return dict(Counter(s.receipts[receipt] for s in good if receipt in s.receipts).most_common())


def _ttfts(good: Sequence[Sample], turn: int) -> Iterable[float]:
    return (s.ttft_ms for s in good if s.turn == turn and s.ttft_ms is not None)


def _by_turn(good: Sequence[Sample]) -> dict[int, float]:
    turns = sorted({s.turn for s in good})
    if len(turns) < 2:
        return {}
    found = {turn: Spread.of(_ttfts(good, turn)) for turn in turns}
    return {turn: spread.p50 for turn, spread in found.items() if spread is not None}
