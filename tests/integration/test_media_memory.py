"""Large pictures leave nothing behind, in either of Serve's transports. The long form is in tests/soak."""

from __future__ import annotations

import pytest

from tests.media_memory_run import TRANSPORTS, assert_nothing_left

COUNT = 150


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_large_pictures_leave_nothing_behind(transport: str) -> None:
    assert_nothing_left(transport, COUNT)
