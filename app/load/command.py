"""`sightline bench`: from options to a report."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.load.client import Client, Target
from app.load.cpu import SIGHTLINE_PROCESSES, CpuMeter, ProcessGroup, groups_by_match, groups_by_pid
from app.load.endpoint import find_model, measure_tokens
from app.load.errors import EndpointError, UsageError
from app.load.machine import machine, versions
from app.load.picture_server import served
from app.load.plan import Plan
from app.load.report import Report, make_report
from app.load.requests import Bodies
from app.load.run import Limit, OpenLoop
from app.load.senders import send, send_from_processes
from app.load.session import Share, loop_factory, plan_pictures
from app.load.texts import Texts, TokenRate
from app.load.workload import Kind, named

__all__ = ["main", "plan_of", "run"]

DEFAULT_DURATION_S = 10.0
#: As a shell reports it of a program that SIGINT ended.
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """The command as a program of its own."""
    from app.load.arguments import add_arguments

    parser = argparse.ArgumentParser(description="A load generator for OpenAI-compatible chat endpoints.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Exit status: 0; 1: unreachable, or no request succeeded; 2: wrong usage; 130: interrupted."""
    try:
        plan = plan_of(args)
        groups = _groups(args)
        _check_writable(args.json, args.rows)
        report = measure(plan, groups)
    except UsageError as error:
        return _fail(str(error), 2)
    except EndpointError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted before anything was measured", INTERRUPTED)
    if not args.quiet:
        print(report.text())
    if args.json is not None:
        report.write_json(args.json)
    if args.rows is not None:
        report.write_rows(args.rows)
    if report.is_interrupted:
        return INTERRUPTED
    return 0 if report.summary.good else 1


def measure(plan: Plan, groups: list[ProcessGroup]) -> Report:
    """Run a plan.

    Raises:
        EndpointError: before anything was measured.
    """
    before, meters = machine(), []
    model, rate = _runner(_learn(plan))
    pictures = plan_pictures(plan)
    with _picture_server(plan, pictures) as (address, own_group):
        shares = [Share(model, rate, index, plan.processes, address) for index in range(plan.processes)]

        def begin() -> None:
            meters.append(CpuMeter([*groups, *own_group]))

        if plan.processes == 1:
            outcomes = [send(plan, shares[0], begin, pictures)]
        else:
            outcomes = send_from_processes(plan, shares, begin)
        cpu_s = meters[0].seconds() if meters else {}
    return make_report(plan, model, rate, outcomes, cpu_s, before, versions())


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


async def _learn(plan: Plan) -> tuple[str, TokenRate]:
    client = Client(plan.target, timeout_s=plan.timeout_s)
    try:
        model = plan.model or await find_model(client, plan.target)
        if not plan.calibrates:
            return model, TokenRate()
        bodies = Bodies(model, 1, stream=plan.is_streamed, usage=plan.wants_usage, extra={})
        texts = Texts(f"{plan.seed}/calibration")
        return model, await measure_tokens(client, bodies, texts, plan.target)
    finally:
        client.close()


@contextmanager
def _picture_server(plan: Plan, pictures: Any) -> Iterator[tuple[str, list[ProcessGroup]]]:
    if plan.workload.kind is not Kind.HTTP_PICTURE:
        yield "", []
        return
    with served(pictures, plan.picture_bind) as (port, pid):
        address = f"http://{plan.picture_host or plan.picture_bind}:{port}/{plan.seed}"
        yield address, [ProcessGroup("image server", (pid,))]


def _runner(work: Any) -> Any:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


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


def _groups(args: argparse.Namespace) -> list[ProcessGroup]:
    pids: dict[str, list[int]] = {}
    for text in args.pid:
        name, numbers = _named("--pid", text)
        pids.setdefault(name, []).extend(_count("--pid", number) for number in numbers.split(","))
    patterns = dict(_named("--process-match", text) for text in args.process_match)
    if args.sightline:
        patterns |= SIGHTLINE_PROCESSES
    return [*groups_by_pid(pids), *groups_by_match(patterns, args.within)]


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


def _check_writable(*paths: Path | None) -> None:
    """Before the run, not after it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.parent}")


def _fail(message: str, status: int) -> int:
    print(f"sightline bench: {message}", file=sys.stderr)
    return status
