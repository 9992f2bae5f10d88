"""The router where numba is not installed: slower, and the same answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from router.keys import block_keys
from sightline_types import KeyScheme, KeySpec, MediaId, MediaSpan, TokenView

ROOT = Path(__file__).parent.parent.parent

SCRIPT = """
import logging, sys
sys.modules["numba"] = None  # importing it raises ImportError
logging.basicConfig(level=logging.INFO)
import numpy as np
from router import Chains, RouterConfig, block_keys, make_index
from router.rehearsal import rehearse
from sightline_types import *
tokens = np.arange(64, dtype=np.int64)
view = TokenView(tokens, (MediaSpan(20, 9, MediaId(7)),), 64)
keyed = block_keys(view, KeySpec(KeyScheme.VLLM, 16))
index = make_index()
index.apply(WorkerId("a"), TierDelta(Tier(), keyed.keys[:16]))
assert index.match(keyed.key_array()).held.tolist() == [2]
assert Chains().acquire(0, keyed.key_array()) == 4
rehearse(RouterConfig())
print(keyed.keys.hex())
"""


def test_without_numba_the_router_works_and_says_so():
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    assert "plain Python, slow (numba cannot be imported" in ran.stderr
    view = TokenView(np.arange(64, dtype=np.int64), (MediaSpan(20, 9, MediaId(7)),), 64)
    assert ran.stdout.strip() == block_keys(view, KeySpec(KeyScheme.VLLM, 16)).keys.hex()
