"""Ctrl-C, which a terminal sends to a command and to all processes that it has started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupts_unheard"]


@contextmanager
def interrupts_unheard() -> Iterator[None]:
    """Processes that begin here never hear it: the main thread, which this is, does, and ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
