"""`sightline bench`: from options to a report."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.load.client import Client
from app.load.cpu import CpuMeter, ProcessGroup
from app.load.endpoint import find_model, measure_tokens
from app.load.errors import EndpointError, UsageError
from app.load.machine import machine, versions
from app.load.options import groups_of, plan_of
from app.load.picture_server import served
from app.load.plan import Plan
from app.load.report import Report, make_report
from app.load.requests import Bodies
from app.load.senders import send, send_from_processes
from app.load.session import Share, loop_factory, plan_pictures
from app.load.texts import Texts, TokenRate
from app.load.workload import Kind

__all__ = ["main", "run"]

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
        groups = groups_of(args)
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
    try:
        _write(report, args)
    except OSError as error:
        return _fail(f"{error.filename or args.json or args.rows}: {error.strerror}", 1)
    if report.is_interrupted:
        return INTERRUPTED
    return 0 if report.summary.good else 1


def _write(report: Report, args: argparse.Namespace) -> None:
    if args.json is not None:
        report.write_json(args.json)
    if args.rows is not None:
        report.write_rows(args.rows)


def measure(plan: Plan, groups: list[ProcessGroup]) -> Report:
    """Run a plan.

    Raises:
        EndpointError: before anything was measured.
    """
    here, meters = machine(), []
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
        watched = {group.name: len(group.pids) for group in [*groups, *own_group]}
    here["load_average_after"] = machine()["load_average"]
    return make_report(plan, model, rate, outcomes, cpu_s, watched, here, versions())


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


def _check_writable(*paths: Path | None) -> None:
    """Before the run, not after it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise UsageError(f"{path}: is a folder")
        if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{path}: may not be written")


def _fail(message: str, status: int) -> int:
    print(f"sightline bench: {message}", file=sys.stderr)
    return status
