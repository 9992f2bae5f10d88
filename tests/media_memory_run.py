"""Runs `tests.media_memory` in a process and a transport of its own, and judges what it read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.media_memory import PICTURE_BYTES
from tests.ray_cluster import ROOT

TRANSPORTS = ("actor", "grpc")
#: Allocators keep a little; a leak of the pictures would be `count` x 2 MB.
SLACK_BYTES = 64 << 20


def assert_nothing_left(transport: str, count: int) -> None:
    environment = os.environ | {
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": str(int(transport == "grpc")),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.media_memory", str(count)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, done.stdout[-2000:] + done.stderr[-3000:]
    read = json.loads(line.removeprefix("RESULT "))
    assert (read["transport"], read["arrived"]) == (transport, count)
    assert read["store_after"] <= read["store_before"] + PICTURE_BYTES, read
    assert max(read["grown"]) < SLACK_BYTES < count * PICTURE_BYTES, read
