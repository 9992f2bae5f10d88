"""The never-lost tests of `tests/engines`, in full: ten kills under load, and long bad weather."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import test_never_lost as short
from tests.engines.conftest import app_args, models, pictures, ray_url
from tests.engines.redeployment import deploy_faulty
from tests.engines.service import Service
from tests.engines.test_never_lost import (
    no_faults_before_or_after,
    test_a_killed_router_actor_comes_back_knowing_what_the_engines_hold,
    test_event_batches_lost_doubled_or_garbled_are_replayed,
    test_pushes_that_are_lost_doubled_or_late_leave_no_trace,
    test_what_is_lost_beyond_the_replay_buffer_is_promised_no_more,
)

__all__ = [
    "models",
    "no_faults_before_or_after",
    "pictures",
    "ray_url",
    "test_a_killed_router_actor_comes_back_knowing_what_the_engines_hold",
    "test_event_batches_lost_doubled_or_garbled_are_replayed",
    "test_pushes_that_are_lost_doubled_or_late_leave_no_trace",
    "test_what_is_lost_beyond_the_replay_buffer_is_promised_no_more",
]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "KILLS", 10)
    monkeypatch.setattr(short, "LOAD_S", 8.0)
    monkeypatch.setattr(short, "ROUNDS", 40)


@pytest.fixture(scope="module")
def faulty(ray_url: str, models: Path) -> Iterator[Service]:
    service = deploy_faulty(app_args(models), ray_url)
    service.wait_idle(timeout_s=400)
    yield service
    service.close()
