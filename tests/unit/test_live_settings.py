"""Settings of the router that change while it runs."""

from __future__ import annotations

import pytest

from router.config import RouterConfig
from router.live_settings import live_settings

START = RouterConfig(policy="round_robin", crowding=0.5)


def test_what_is_given_wins_and_the_rest_stays_as_the_application_started():
    live = live_settings(START, {"policy": "cost", "admission": {"max_waiting_requests_per_worker": 3}})
    assert (live.policy, live.crowding) == ("cost", 0.5)
    assert live.admission.max_waiting_requests_per_worker == 3
    assert live_settings(START, {}) == START


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"polcy": "cost"}, "polcy"),
        ({"crowding": -1}, "crowding: -1"),
        ({"decision_budget_ms": 5}, "decision_budget_ms cannot change live"),
        ({"hints": {"pin": True}}, "hints cannot change live"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given, says):
    with pytest.raises(ValueError, match=says):
        live_settings(START, given)
