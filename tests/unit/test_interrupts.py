"""Ctrl-C reaches a command, not the processes that it starts for itself."""

from __future__ import annotations

import signal
import subprocess
import sys

from app.interrupts import interrupts_unheard

_ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"


def _child_ignores() -> bool:
    said = subprocess.run([sys.executable, "-S", "-c", _ASK], capture_output=True, text=True, check=True)
    return said.stdout.strip() == "True"


def test_a_process_that_begins_there_ignores_it_and_this_one_goes_on_hearing_it():
    before = signal.getsignal(signal.SIGINT)
    with interrupts_unheard():
        assert _child_ignores()
    assert signal.getsignal(signal.SIGINT) is before
    assert not _child_ignores()
