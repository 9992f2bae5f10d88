"""Ports for an engine's event publishers, when a firewall wants them in a fixed range.

Replicas of one node take pairs (events, replay) upwards from a base. A pair is claimed with a lock file
that the process holds until it ends, so that two replicas that start at once never take the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["PortPair", "claim_ports"]

PAIRS = 256


@dataclass(frozen=True, slots=True)
class PortPair:
    """Claimed for as long as `lock` stays open."""

    events: int
    replay: int
    lock: IO[str]


def claim_ports(base: int, ranks: int = 1) -> PortPair:
    """Two runs of `ranks` free ports: events from `.events` on, replay from `.replay` on, dp rank added.

    Raises:
        RuntimeError: no free pair within the range.
    """
    for start in _starts(base, ranks):
        lock = _lock(start)
        if lock is None:
            continue
        if all(_is_free(port) for port in range(start, start + 2 * ranks)):
            return PortPair(start, start + ranks, lock)
        lock.close()
    raise RuntimeError(f"no free ports for KV events from {base} on; change kv_events_port_base")


def _starts(base: int, ranks: int) -> Iterator[int]:
    return iter(range(base, min(base + 2 * ranks * PAIRS, 65_536 - 2 * ranks), 2 * ranks))


def _lock(port: int) -> IO[str] | None:
    path = Path(tempfile.gettempdir()) / f"sightline-kv-port-{os.getuid()}-{port}.lock"
    handle = path.open("w")
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    handle.close()
    return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
