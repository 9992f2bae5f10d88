"""The audit's findings are shown by worker, and a worker that has left shows nothing."""

from __future__ import annotations

from typing import Any

import pytest

import deployments.audit_gauges as audit_gauges
from deployments.audit_gauges import AuditGauges
from router.audit import AuditCounters
from sightline_types import WorkerId

A, B = WorkerId("a"), WorkerId("b")


class Row:
    """What the gauges read of a worker's status."""

    def __init__(self, worker: WorkerId, drift: float, distrusted: tuple[str, ...] = ()) -> None:
        self.worker = worker
        self.audit = AuditCounters(drift_tokens=drift, distrusted=distrusted)


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], float]:
    seen: dict[tuple[str, str], float] = {}

    class Gauge:
        def __init__(self, name: str, **_: Any) -> None:
            self.name = name

        def set(self, value: float, tags: dict[str, str]) -> None:
            seen[self.name, tags["worker"]] = value

    monkeypatch.setattr(audit_gauges, "Gauge", Gauge)
    return seen


def test_each_worker_shows_its_drift_and_its_distrusted_layouts(values: dict[tuple[str, str], float]) -> None:
    AuditGauges().show([Row(A, 1.5, ("f1", "")), Row(B, 0.0)])  # type: ignore[list-item]
    assert values == {
        ("sightline_drift_tokens", "a/0"): 1.5,
        ("sightline_distrusted_layouts", "a/0"): 2,
        ("sightline_drift_tokens", "b/0"): 0.0,
        ("sightline_distrusted_layouts", "b/0"): 0,
    }


def test_a_worker_that_has_left_goes_to_nothing(values: dict[tuple[str, str], float]) -> None:
    gauges = AuditGauges()
    gauges.show([Row(A, 1.5, ("f1",)), Row(B, 2.5)])  # type: ignore[list-item]
    gauges.show([Row(B, 2.5)])  # type: ignore[list-item]
    assert values["sightline_drift_tokens", "a/0"] == values["sightline_distrusted_layouts", "a/0"] == 0
    assert values["sightline_drift_tokens", "b/0"] == 2.5
