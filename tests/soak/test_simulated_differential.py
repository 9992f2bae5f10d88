"""The differential test of the simulated engine (`tests/engines`), with thousands of requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines import test_simulated_differential as short
from tests.engines.conftest import models
from tests.engines.test_simulated_differential import (
    recordings,
    test_every_step_of_the_simulated_engine_is_a_step_of_the_real_one,
)

__all__ = ["models", "recordings", "test_every_step_of_the_simulated_engine_is_a_step_of_the_real_one"]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", autouse=True)
def in_full() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(short.COUNTS, "model", 1500)
        patch.setitem(short.COUNTS, "sync", 4000)
        patch.setitem(short.COUNTS, "async", 4000)
        patch.setattr(short, "RECORDING_S", 3000)
        yield
