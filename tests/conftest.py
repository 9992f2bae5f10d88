"""For every suite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from app.settings import variables

# No property fails because the machine is slow. The same examples every time: what passed once fails for a
# reason. `make soak` searches on with others (`--hypothesis-profile=searching`).
_PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("searching", **_PATIENT)
settings.register_profile("sightline", derandomize=True, **_PATIENT)
settings.load_profile("sightline")


@pytest.fixture(autouse=True)
def scheduling_stays() -> Iterator[None]:
    """What a test starts inherits how it is scheduled: one real-time thread starves the machine."""
    before = os.sched_getscheduler(0)
    yield
    assert os.sched_getscheduler(0) == before


@pytest.fixture(scope="session", autouse=True)
def no_settings_from_the_shell() -> Iterator[None]:
    """What whoever runs the tests has set for their own serving must not change what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in variables():
            patch.delenv(variable, raising=False)
        yield
