"""From parsed options to a plan: everything that can be wrong with them is said here."""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

from app.load.cpu import SIGHTLINE_PROCESSES, ProcessGroup, groups_by_match, groups_by_pid
from app.load.errors import UsageError
from app.load.plan import Plan
from app.load.run import Limit, OpenLoop
from app.load.target import Target
from app.load.workload import named

__all__ = ["groups_of", "plan_of"]

DEFAULT_DURATION_S = 10.0


def plan_of(args: argparse.Namespace) -> Plan:
    """Raises UsageError for options that cannot be."""
    workload = named(args.profile, _changes(args))
    _check(args)
    rate = args.rate
    loop = OpenLoop(rate, args.arrivals == "poisson", args.max_outstanding) if rate is not None else None
    duration = args.duration if args.duration or args.requests else DEFAULT_DURATION_S
    return Plan(
        target=Target.parse(args.url, [_header(text) for text in args.header]),
        profile=args.profile,
        workload=workload,
        limit=Limit(args.requests, duration),
        concurrency=args.concurrency,
        open=loop,
        warmup=args.warmup,
        model=args.model,
        max_tokens=args.max_tokens,
        is_streamed=not args.no_stream,
        wants_usage=not args.no_usage,
        calibrates=not args.no_calibration,
        extra=_json_object(args.body),
        timeout_s=args.timeout,
        seed=args.seed if args.seed is not None else f"{time.time_ns():x}",
        picture_bind=args.picture_bind,
        picture_host=args.picture_host,
        processes=args.processes,
    )


def groups_of(args: argparse.Namespace) -> list[ProcessGroup]:
    """The processes to watch; UsageError for one that is not there."""
    pids: dict[str, list[int]] = {}
    for text in args.pid:
        name, numbers = _named("--pid", text)
        pids.setdefault(name, []).extend(_count("--pid", number) for number in numbers.split(","))
    asked = dict(_named("--process-match", text) for text in args.process_match)
    patterns = asked | SIGHTLINE_PROCESSES if args.sightline else asked
    matched = groups_by_match(patterns, args.within)
    missing = asked.keys() - {group.name for group in matched}
    if missing or (args.sightline and not matched):
        where = f" below {args.within}" if args.within is not None else " on this machine"
        raise UsageError(f"no process{where} matches {', '.join(sorted(missing)) or 'Sightline'}")
    return [*groups_by_pid(pids), *matched]


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    names = ("prompt_tokens", "shared_tokens", "shared_count", "new_tokens", "pictures", "picture_bytes",
             "turns", "conversations")  # fmt: skip
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.picture_size is not None:
        changes["picture_size"] = _size(args.picture_size)
    if args.repeat is not None:
        changes["repeat"] = None if args.repeat == "new" else _count("--repeat", args.repeat)
    return changes


def _check(args: argparse.Namespace) -> None:
    at_least = {"concurrency": 1, "max_outstanding": 1, "processes": 1, "max_tokens": 1, "warmup": 0,
                "requests": 1}  # fmt: skip
    for name, least in at_least.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: it must be at least {least}")
    for name in ("duration", "rate", "timeout"):
        value = getattr(args, name)
        if value is not None and not (0 < value < math.inf):
            raise UsageError(f"--{name} {value:g}: it must be above 0")
    if args.processes > args.concurrency and args.rate is None:
        raise UsageError(f"--processes {args.processes}: more than --concurrency {args.concurrency}")
    if args.seed is not None and not args.seed.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"--seed {args.seed!r}: letters, digits, - and _ only (it stands in addresses)")


def _named(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"{option} {text!r}: give NAME=...")
    return name, value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip()) or any(c in text for c in "\r\n"):
        raise UsageError(f"--header {text!r}: give 'name: value'")
    return name.strip(), value.strip()


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and min(int(width), int(height)) >= 16):
        raise UsageError(f"--picture-size {text!r}: give WxH in pixels, such as 1024x768, 16 at least")
    return int(width), int(height)


def _count(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{option} {text!r}: give a number from 1")
    return int(text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--body {text!r}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise UsageError(f"--body {text!r}: give an object")
    return found
