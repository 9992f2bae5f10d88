"""A killed process's children do not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from deployments.engines import reaper

PARENT = """
import subprocess, sys, time
from reaper import start_reaper
start_reaper()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""


def test_children_of_a_killed_process_are_killed_even_in_sessions_of_their_own() -> None:
    # By its own name: the package it is in takes long to load.
    folder = str(Path(reaper.__file__).parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": folder},
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    wait_rounds(next(p for p in psutil.Process(parent.pid).children() if p != child))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs([child], timeout=30)
    assert not alive


def wait_rounds(watcher: psutil.Process, count: int = 5) -> None:
    """Until it has slept so often: it notes new children on its next round, once it has begun at all."""
    until, deadline = watcher.num_ctx_switches().voluntary + count, time.monotonic() + 30
    while watcher.num_ctx_switches().voluntary < until and time.monotonic() < deadline:
        time.sleep(reaper.PERIOD_S / 5)


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    deadline = time.monotonic() + 30
    while reaper.start_time(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reaper.start_time(child.pid) is None
    child.wait()


def test_descendants_are_found_with_their_start_times() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = reaper.descendants(os.getpid())
        assert (child.pid, reaper.start_time(child.pid)) in found
    finally:
        child.kill()
        child.wait()
