"""What the audit finds, as Prometheus gauges: how far predictions are off, and what is distrusted."""

from __future__ import annotations

from collections.abc import Iterable

from ray.serve.metrics import Gauge

from router.core import WorkerStatus
from sightline_types import WorkerId

__all__ = ["AuditGauges"]


class AuditGauges:
    """One per control plane. Prometheus, by worker: `ray_sightline_drift_tokens` (a moving mean of how far
    the engine's cached tokens lie outside the prediction) and `ray_sightline_distrusted_layouts`.
    """

    def __init__(self) -> None:
        self._drift = Gauge(
            "sightline_drift_tokens",
            description="Moving mean of the unexplained difference between predicted and real cached tokens.",
            tag_keys=("worker",),
        )
        self._distrusted = Gauge(
            "sightline_distrusted_layouts",
            description="Layouts that earn no credit on this worker, because predictions were wrong.",
            tag_keys=("worker",),
        )
        self.shown: frozenset[WorkerId] = frozenset()

    def show(self, rows: Iterable[WorkerStatus]) -> None:
        """Set both for every worker; one that has left goes to 0, since a gauge cannot be withdrawn."""
        audits = {row.worker: row.audit for row in rows}
        for worker in self.shown - audits.keys():
            self._set(worker, 0.0, 0)
        for worker, audit in audits.items():
            self._set(worker, audit.drift_tokens, len(audit.distrusted))
        self.shown = frozenset(audits)

    def _set(self, worker: WorkerId, drift_tokens: float, distrusted: int) -> None:
        tags = {"worker": str(worker)}
        self._drift.set(drift_tokens, tags=tags)
        self._distrusted.set(distrusted, tags=tags)
