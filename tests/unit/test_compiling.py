"""Compiled code on the disk, as the node's next process finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CALLER = """
from callee import price
from router.compiling import compiled

@compiled
def total(tokens):
    return price(tokens) + 1

print(total(10), len(total.stats.cache_hits))
"""
CALLEE = """
from router.compiling import compiled

@compiled
def price(tokens):
    return tokens * {factor}
"""


def run(folder: Path, factor: int) -> list[int]:
    """The total, and whether its code was found on the disk."""
    pytest.importorskip("numba")
    (folder / "callee.py").write_text(CALLEE.format(factor=factor))
    path = f"import sys; sys.path[:0] = [{str(folder)!r}]; import caller"
    printed = subprocess.run([sys.executable, "-c", path], capture_output=True, text=True, check=True)
    return [int(word) for word in printed.stdout.split()]


def test_compiled_code_is_found_again_and_is_not_what_its_callee_was_before_an_edit(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    assert run(tmp_path, 2) == [21, 0]
    assert run(tmp_path, 2) == [21, 1]
    assert run(tmp_path, 3) == [31, 0]
