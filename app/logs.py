"""Log levels by room: `info,sightline.router=debug`."""

from __future__ import annotations

import logging
import sys

__all__ = ["ROOMS", "configure", "parse_levels"]

ROOT = "sightline"
#: The loggers that there are; each takes the level of the nearest name above it.
ROOMS = (ROOT, "sightline.router", "sightline.processors", "sightline.deployments", "sightline.app")

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def parse_levels(spec: str) -> dict[str, int]:
    """Logger name to level. A level alone is for all; `router=debug` is short for `sightline.router=debug`.

    Raises:
        ValueError: an unknown level or room.
    """
    levels = {ROOT: logging.INFO}
    for entry in filter(None, (part.strip() for part in spec.split(","))):
        room, equals, level = entry.rpartition("=")
        name = _room(room.strip()) if equals else ROOT
        levels[name] = _level(level.strip(), entry)
    return levels


def configure(spec: str) -> None:
    """Apply `spec` in this process: one line a record, to stderr. Calling it again replaces the levels.

    Other libraries' loggers are left alone, and ours do not reach their handlers.

    Raises:
        ValueError: as `parse_levels`.
    """
    levels = parse_levels(spec)
    for room in ROOMS:
        logging.getLogger(room).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    root = logging.getLogger(ROOT)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    root.handlers[:] = [handler]
    root.propagate = False


def _room(text: str) -> str:
    name = text if text == ROOT or text.startswith(f"{ROOT}.") else f"{ROOT}.{text}"
    if name not in ROOMS:
        raise ValueError(f"unknown room {text!r} in a log setting: choose from {', '.join(ROOMS)}")
    return name


def _level(text: str, entry: str) -> int:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"unknown level in log setting {entry!r}: choose from {', '.join(_LEVELS)}")
    return level
