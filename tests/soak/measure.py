"""Runs the churn and reads what it says."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.ray_cluster import ROOT


def growth(*, operations: int, resident: int, settled_after: int) -> float:
    """By what share the process's memory grew at most after the first `settled_after` operations."""
    command = [sys.executable, "-m", "tests.soak.churn"]
    command += ["--operations", str(operations), "--resident", str(resident)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    print(output)
    samples = [json.loads(line) for line in output.splitlines()]
    settled = [sample["rss"] for sample in samples if sample["operations"] >= settled_after]
    assert len(settled) >= 5, "too few samples"
    return max(settled) / settled[0] - 1
