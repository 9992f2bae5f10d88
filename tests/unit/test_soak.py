"""A twentieth of `make soak`: the router's memory stays flat while blocks come and go."""

from __future__ import annotations

import subprocess
import sys

from tests.soak.measure import growth


def test_memory_stays_flat_while_blocks_come_and_go() -> None:
    assert growth(operations=1_000_000, resident=200_000, settled_after=250_000) <= 0.05


def test_a_soak_knows_what_it_holds() -> None:
    small = ["--operations", "20000", "--resident", "6400", "--workers", "4", "--samples", "2"]
    assert subprocess.run([sys.executable, "-m", "tests.soak.churn", *small]).returncode == 0
