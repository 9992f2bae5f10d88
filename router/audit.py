"""Exactness is checked, not assumed: predictions against what engines report, per worker and layout.

A prompt length that differs from an exact view's means that the layout is wrong on that worker: it is
distrusted at once. A cached-token figure that differs distrusts only when that repeats on comparable
requests, with nothing in between that explains it. A distrusted layout earns no credit; its predictions
are still made and compared (shadow predictions), and after a run of right ones it is trusted again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from router.config import RouterConfig
from sightline_types import DecisionId, DegradeReason, WorkerId

__all__ = ["Audit", "AuditCounters", "AuditCounts", "Difference", "LayoutAudit", "Prediction", "Verdict"]

#: Weight of the newest comparison in the drift.
_DRIFT_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class Difference:
    """A prediction that the engine contradicted, in tokens."""

    decision_id: DecisionId
    predicted: int
    reported: int


class Verdict(StrEnum):
    """What one comparison of cached tokens says."""

    AGREED = "agreed"
    DIFFERED = "differed"
    EXPLAINED = "explained"  # it differed, and what changed in between may be why
    NOT_COMPARED = "not_compared"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A range, in tokens: blocks expected at decision time may have come by the time the engine looked."""

    decision_id: DecisionId
    least: int
    most: int

    def nearest(self, reported: int) -> int:
        """The end of the range that `reported` is to be held against; itself where it lies within."""
        return min(max(reported, self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCounts:
    """What came of the comparisons.

    agreed, differed: predicted cached tokens against the engine's. explained: they differ, but blocks
    were evicted or came in between. not_compared: where the comparison says nothing.
    length_agreed, length_differed: prompt lengths of exact views.
    drift_tokens: how far the engine's figure lies outside the prediction, a moving mean of the
    comparable requests, unexplained ones only.
    """

    agreed: int = 0
    differed: int = 0
    explained: int = 0
    not_compared: int = 0
    length_agreed: int = 0
    length_differed: int = 0
    drift_tokens: float = 0.0


_SUMMED = tuple(count.name for count in fields(AuditCounts) if count.name != "drift_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAudit(AuditCounts):
    """One layout (None: text) on one worker.

    distrust: why it earns no credit now; shadow_agreements: right predictions in a row since.
    """

    layout: str | None
    distrust: DegradeReason | None = None
    shadow_agreements: int = 0
    times_distrusted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCounters(AuditCounts):
    """One worker's audit: the sums of its layouts' (of the drift the largest), and each of them.

    distrusted: fingerprints of the layouts that earn no credit now ("" for text).
    """

    distrusted: tuple[str, ...] = ()
    last_difference: Difference | None = None
    last_length_difference: Difference | None = None
    layouts: tuple[LayoutAudit, ...] = ()


@dataclass(slots=True)
class _Layout:
    """audit: so far. in_a_row: unexplained differences since the last agreement. is_length_right: of the
    request compared last."""

    audit: LayoutAudit
    in_a_row: int = 0
    is_length_right: bool = True

    def change(self, **counts: Any) -> None:
        self.audit = replace(self.audit, **counts)


@dataclass(slots=True)
class _Worker:
    layouts: dict[str | None, _Layout] = field(default_factory=dict)
    last_difference: Difference | None = None
    last_length_difference: Difference | None = None


@dataclass(slots=True)
class Audit:
    """Counters by worker; they last as long as the worker is known. version: of what is distrusted."""

    distrust_after: int = 3
    trust_after: int = 10
    version: int = 0
    _workers: dict[WorkerId, _Worker] = field(default_factory=dict)

    def configure(self, config: RouterConfig) -> None:
        self.distrust_after = config.distrust_after_differences
        self.trust_after = config.trust_after_agreements

    def of(self, worker: WorkerId) -> AuditCounters:
        known = self._workers.get(worker)
        if known is None:
            return AuditCounters()
        layouts = tuple(known_layout.audit for known_layout in known.layouts.values())
        sums: dict[str, Any] = {name: sum(getattr(audit, name) for audit in layouts) for name in _SUMMED}
        return AuditCounters(
            **sums,
            drift_tokens=max((audit.drift_tokens for audit in layouts), default=0.0),
            distrusted=tuple(audit.layout or "" for audit in layouts if audit.distrust is not None),
            last_difference=known.last_difference,
            last_length_difference=known.last_length_difference,
            layouts=layouts,
        )

    def distrust_of(self, worker: WorkerId, layout: str | None) -> DegradeReason | None:
        """Why `layout` earns no credit on `worker`; None where it is trusted."""
        known = self._workers.get(worker)
        found = known.layouts.get(layout) if known is not None else None
        return found.audit.distrust if found is not None else None

    def compare_length(
        self, worker: WorkerId, layout: str | None, decision_id: DecisionId, predicted: int, reported: int
    ) -> None:
        """Hold the length of an exact view against the engine's; distrust `layout` at once if it differs."""
        known, found = self._find(worker, layout)
        found.is_length_right = reported == predicted
        if found.is_length_right:
            found.change(length_agreed=found.audit.length_agreed + 1)
            return
        found.change(length_differed=found.audit.length_differed + 1)
        known.last_length_difference = Difference(decision_id, predicted, reported)
        self._distrust(found, DegradeReason.LENGTH_DISTRUST)

    def compare_cached(
        self,
        worker: WorkerId,
        layout: str | None,
        predicted: Prediction,
        reported: int,
        *,
        is_explained: bool,
    ) -> Verdict:
        """Hold the predicted cached tokens against the engine's.

        is_explained: what changed in the worker's cache in between may account for a difference.
        """
        known, found = self._find(worker, layout)
        audit, off = found.audit, abs(predicted.nearest(reported) - reported)
        if off and is_explained:
            found.change(explained=audit.explained + 1)
            return Verdict.EXPLAINED
        drift = audit.drift_tokens + _DRIFT_GAIN * (off - audit.drift_tokens)
        if off:
            found.change(differed=audit.differed + 1, drift_tokens=drift)
            known.last_difference = Difference(predicted.decision_id, predicted.nearest(reported), reported)
            self._differ(found)
            return Verdict.DIFFERED
        found.change(agreed=audit.agreed + 1, drift_tokens=drift)
        self._agree(found)
        return Verdict.AGREED

    def skip(self, worker: WorkerId, layout: str | None) -> Verdict:
        """A request that says nothing of the predictions."""
        found = self._find(worker, layout)[1]
        found.change(not_compared=found.audit.not_compared + 1)
        return Verdict.NOT_COMPARED

    def trust(self, worker: WorkerId) -> tuple[str, ...]:
        """An operator's word: every layout of `worker` is believed again. Which were not."""
        known = self._workers.get(worker)
        restored = []
        for layout, found in known.layouts.items() if known is not None else ():
            if found.audit.distrust is not None:
                restored.append(layout or "")
                self._restore(found)
        return tuple(restored)

    def start_over(self, worker: WorkerId) -> None:
        """A new epoch: what was compared with the view before says nothing of this one.

        Distrust of a prompt length stays: it is about the layout, not the view.
        """
        known = self._workers.get(worker)
        for found in known.layouts.values() if known is not None else ():
            found.in_a_row = 0
            if found.audit.distrust is DegradeReason.CACHED_DISTRUST:
                self._restore(found)

    def forget(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)
        self.version += 1

    def _find(self, worker: WorkerId, layout: str | None) -> tuple[_Worker, _Layout]:
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = _Worker()
        found = known.layouts.get(layout)
        if found is None:
            found = known.layouts[layout] = _Layout(LayoutAudit(layout=layout))
        return known, found

    def _differ(self, found: _Layout) -> None:
        found.in_a_row += 1
        if found.audit.distrust is not None:
            found.change(shadow_agreements=0)
        elif found.in_a_row >= self.distrust_after:
            self._distrust(found, DegradeReason.CACHED_DISTRUST)

    def _agree(self, found: _Layout) -> None:
        found.in_a_row = 0
        if found.audit.distrust is None or not found.is_length_right:
            return
        found.change(shadow_agreements=found.audit.shadow_agreements + 1)
        if found.audit.shadow_agreements >= self.trust_after:
            self._restore(found)

    def _distrust(self, found: _Layout, reason: DegradeReason) -> None:
        audit = found.audit
        times = audit.times_distrusted + (audit.distrust is None)
        found.change(distrust=reason, shadow_agreements=0, times_distrusted=times)
        if audit.distrust is not reason:
            self.version += 1

    def _restore(self, found: _Layout) -> None:
        found.in_a_row = 0
        found.change(distrust=None, shadow_agreements=0)
        self.version += 1
