"""Kills what a killed replica leaves behind: an engine's child would hold the GPU.

Run as a script with nothing but the standard library: `python reaper.py PARENT_PID`. It notes the
parent's descendants twice a second and, when the parent is gone, kills those that still live. A pid that
was given to another process meanwhile is told apart by its start time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["start_reaper"]

PERIOD_S = 0.5

#: pid and start time (clock ticks since boot): together they name one process.
Process = tuple[int, int]


def start_reaper() -> None:
    """Watch over this process's children from now on, whatever ends it."""
    subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        close_fds=True,
    )


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when there is no such process, or it is a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def _stat(pid: int) -> list[str] | None:
    """The fields after the command name, which may itself hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def descendants(root: int) -> set[Process]:
    """All living descendants of `root`, without the caller."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := parent_of(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
    found: set[Process] = set()
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        started = start_time(pid)
        if pid != os.getpid() and started is not None:
            found.add((pid, started))
        queue.extend(children.get(pid, ()))
    return found


def watch(parent: int) -> None:
    started = start_time(parent)
    known: set[Process] = set()
    while started is not None and start_time(parent) == started:
        known = {p for p in known if start_time(p[0]) == p[1]} | descendants(parent)
        time.sleep(PERIOD_S)
    for pid, began in known:
        if start_time(pid) == began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(int(sys.argv[1]))
