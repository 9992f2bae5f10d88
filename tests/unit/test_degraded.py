"""Degraded requests are counted each, and warned of now and then."""

from __future__ import annotations

import logging

import pytest

from deployments.degraded import WARNING_PERIOD_S, DegradedRequests
from sightline_types import DegradeReason

SIZE, TIMEOUT = DegradeReason.SIZE_UNKNOWN, DegradeReason.DECISION_TIMEOUT


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_reason_of_a_request_is_counted_once() -> None:
    requests = DegradedRequests("m")
    requests.note([SIZE, SIZE, TIMEOUT])
    requests.note([SIZE])
    requests.note([])
    assert requests.counts == {SIZE: 2, TIMEOUT: 1}


def test_a_reason_is_warned_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    requests = DegradedRequests("m", clock)
    with caplog.at_level(logging.WARNING, "sightline"):
        for _ in range(5):
            requests.note([SIZE])
        requests.note([TIMEOUT])
        clock.now += WARNING_PERIOD_S
        requests.note([SIZE])
    warned = [record.message for record in caplog.records]
    assert len(warned) == 3
    assert "size_unknown (6 so far)" in warned[2]
