"""Twenty million stores and removes over 64 workers: memory stays where it was after the first five."""

from __future__ import annotations

import pytest

from tests.soak.measure import growth

pytestmark = pytest.mark.timeout(3600)


def test_memory_stays_flat_over_twenty_million_operations() -> None:
    assert growth(operations=20_000_000, resident=4_000_000, settled_after=5_000_000) <= 0.05
