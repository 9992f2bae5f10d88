"""Exactness is checked, not assumed: predictions against what engines report, per worker and layout.

A prompt length that differs from an exact view's means that the layout is wrong on that worker: it is
distrusted at once. A cached-token figure that differs distrusts only when that repeats on comparable
requests, with nothing in between that explains it. A distrusted layout earns no credit; its predictions
are still made and compared (shadow predictions), and after a run of right ones it is trusted again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from router.config import RouterConfig
from sightline_types import DecisionId, DegradeReason, WorkerId

__all__ = ["Audit", "AuditCounters", "Difference", "LayoutAudit", "Prediction", "Verdict"]

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


@dataclass(frozen=True, slots=True)
class LayoutAudit:
    """One layout (None: text) on one worker.

    agreed, differed: predicted cached tokens against the engine's. explained: they differ, but blocks
    were evicted or came in between. not_compared: where the comparison says nothing.
    length_agreed, length_differed: prompt lengths of exact views.
    drift_tokens: how far the engine's figure lies outside the prediction, a moving mean of the
    comparable requests, unexplained ones only.
    distrust: why it earns no credit now; shadow_agreements: right predictions in a row since.
    """

    layout: str | None
    agreed: int = 0
    differed: int = 0
    explained: int = 0
    not_compared: int = 0
    length_agreed: int = 0
    length_differed: int = 0
    drift_tokens: float = 0.0
    distrust: DegradeReason | None = None
    shadow_agreements: int = 0
    times_distrusted: int = 0


@dataclass(frozen=True, slots=True)
class AuditCounters:
    """One worker's audit: the sums of its layouts', and each of them.

    distrusted: fingerprints of the layouts that earn no credit now ("" for text).
    """

    agreed: int = 0
    differed: int = 0
    explained: int = 0
    not_compared: int = 0
    length_agreed: int = 0
    length_differed: int = 0
    drift_tokens: float = 0.0
    distrusted: tuple[str, ...] = ()
    last_difference: Difference | None = None
    last_length_difference: Difference | None = None
    layouts: tuple[LayoutAudit, ...] = ()


@dataclass(slots=True)
class _Layout:
    """`LayoutAudit` while it counts. in_a_row: unexplained differences since the last agreement."""

    agreed: int = 0
    differed: int = 0
    explained: int = 0
    not_compared: int = 0
    length_agreed: int = 0
    length_differed: int = 0
    drift_tokens: float = 0.0
    distrust: DegradeReason | None = None
    in_a_row: int = 0
    shadow_agreements: int = 0
    times_distrusted: int = 0
    is_length_right: bool = True  # of the request compared last

    def view(self, layout: str | None) -> LayoutAudit:
        return LayoutAudit(
            layout,
            self.agreed,
            self.differed,
            self.explained,
            self.not_compared,
            self.length_agreed,
            self.length_differed,
            round(self.drift_tokens, 3),
            self.distrust,
            self.shadow_agreements,
            self.times_distrusted,
        )


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
        layouts = tuple(audit.view(layout) for layout, audit in known.layouts.items())
        return AuditCounters(
            agreed=sum(audit.agreed for audit in layouts),
            differed=sum(audit.differed for audit in layouts),
            explained=sum(audit.explained for audit in layouts),
            not_compared=sum(audit.not_compared for audit in layouts),
            length_agreed=sum(audit.length_agreed for audit in layouts),
            length_differed=sum(audit.length_differed for audit in layouts),
            drift_tokens=max((audit.drift_tokens for audit in layouts), default=0.0),
            distrusted=tuple(audit.layout or "" for audit in layouts if audit.distrust is not None),
            last_difference=known.last_difference,
            last_length_difference=known.last_length_difference,
            layouts=layouts,
        )

    def distrust_of(self, worker: WorkerId, layout: str | None) -> DegradeReason | None:
        """Why `layout` earns no credit on `worker`; None where it is trusted."""
        known = self._workers.get(worker)
        audit = known.layouts.get(layout) if known is not None else None
        return audit.distrust if audit is not None else None

    def compare_length(
        self, worker: WorkerId, layout: str | None, decision_id: DecisionId, predicted: int, reported: int
    ) -> None:
        """Hold the length of an exact view against the engine's; distrust `layout` at once if it differs."""
        known, audit = self._find(worker, layout)
        audit.is_length_right = reported == predicted
        if audit.is_length_right:
            audit.length_agreed += 1
            return
        audit.length_differed += 1
        known.last_length_difference = Difference(decision_id, predicted, reported)
        self._distrust(audit, DegradeReason.LENGTH_DISTRUST)

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
        known, audit = self._find(worker, layout)
        off = abs(predicted.nearest(reported) - reported)
        if off and is_explained:
            audit.explained += 1
            return Verdict.EXPLAINED
        audit.drift_tokens += _DRIFT_GAIN * (off - audit.drift_tokens)
        if off:
            audit.differed += 1
            known.last_difference = Difference(predicted.decision_id, predicted.nearest(reported), reported)
            self._differ(audit)
            return Verdict.DIFFERED
        audit.agreed += 1
        self._agree(audit)
        return Verdict.AGREED

    def skip(self, worker: WorkerId, layout: str | None) -> Verdict:
        """A request that says nothing of the predictions."""
        self._find(worker, layout)[1].not_compared += 1
        return Verdict.NOT_COMPARED

    def trust(self, worker: WorkerId) -> tuple[str, ...]:
        """An operator's word: every layout of `worker` is believed again. Which were not."""
        known = self._workers.get(worker)
        restored = []
        for layout, audit in known.layouts.items() if known is not None else ():
            if audit.distrust is not None:
                restored.append(layout or "")
                self._restore(audit)
        return tuple(restored)

    def start_over(self, worker: WorkerId) -> None:
        """A new epoch: what was compared with the view before says nothing of this one.

        Distrust of a prompt length stays: it is about the layout, not the view.
        """
        known = self._workers.get(worker)
        for audit in known.layouts.values() if known is not None else ():
            audit.in_a_row = 0
            if audit.distrust is DegradeReason.CACHED_DISTRUST:
                self._restore(audit)

    def forget(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)
        self.version += 1

    def _find(self, worker: WorkerId, layout: str | None) -> tuple[_Worker, _Layout]:
        known = self._workers.setdefault(worker, _Worker())
        return known, known.layouts.setdefault(layout, _Layout())

    def _differ(self, audit: _Layout) -> None:
        audit.in_a_row += 1
        if audit.distrust is not None:
            audit.shadow_agreements = 0
        elif audit.in_a_row >= self.distrust_after:
            self._distrust(audit, DegradeReason.CACHED_DISTRUST)

    def _agree(self, audit: _Layout) -> None:
        audit.in_a_row = 0
        if audit.distrust is None or not audit.is_length_right:
            return
        audit.shadow_agreements += 1
        if audit.shadow_agreements >= self.trust_after:
            self._restore(audit)

    def _distrust(self, audit: _Layout, reason: DegradeReason) -> None:
        audit.shadow_agreements = 0
        if audit.distrust is None:
            audit.times_distrusted += 1
        if audit.distrust is not reason:
            audit.distrust = reason
            self.version += 1

    def _restore(self, audit: _Layout) -> None:
        audit.distrust = None
        audit.in_a_row = audit.shadow_agreements = 0
        self.version += 1
