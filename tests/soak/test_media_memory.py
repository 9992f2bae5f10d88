"""2,000 pictures of 2 MB leave nothing behind, in either of Serve's transports."""

from __future__ import annotations

import pytest

from tests.media_memory_run import TRANSPORTS, assert_nothing_left


@pytest.mark.timeout(900)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_thousand_large_pictures_leave_nothing_behind(transport: str) -> None:
    assert_nothing_left(transport, 2000)
