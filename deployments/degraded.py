"""Requests that were routed on less than everything: counted by reason, and warned of now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from ray.serve.metrics import Counter

from sightline_types import DegradeReason

__all__ = ["DegradedRequests"]

log = logging.getLogger("sightline.deployments")

WARNING_PERIOD_S = 60.0


class DegradedRequests:
    """One per ingress replica. Prometheus: `ray_sightline_degraded_requests`, by model and reason."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._counter = Counter(
            "sightline_degraded_requests",
            description="Requests whose routing was less than exact, by reason.",
            tag_keys=("model", "reason"),
        )
        self._warned_at: dict[DegradeReason, float] = {}
        self.counts: dict[DegradeReason, int] = {}

    def note(self, reasons: Iterable[DegradeReason]) -> None:
        """Count each reason of one request; warn of each at most once a minute."""
        for reason in dict.fromkeys(reasons):
            self.counts[reason] = self.counts.get(reason, 0) + 1
            self._counter.inc(1, tags={"model": self._model, "reason": reason.value})
            if self._is_due(reason):
                log.warning(
                    "model %s: a request was routed less than exactly: %s (%d so far)",
                    self._model,
                    reason.value,
                    self.counts[reason],
                )

    def _is_due(self, reason: DegradeReason) -> bool:
        now, last = self._clock(), self._warned_at.get(reason)
        if last is not None and now - last < WARNING_PERIOD_S:
            return False
        self._warned_at[reason] = now
        return True
