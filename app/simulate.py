"""`sightline simulate`: a fleet of simulated workers behind the real router, policies side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from app.simulate_args import (
    ArgumentError,
    check_counts,
    check_outputs,
    check_workload,
    read_changes,
    read_policies,
    read_profile,
    read_rates,
    read_router,
)
from app.simulate_output import RatedRun, as_json, table, write_json
from app.simulate_runs import Job, results, title
from simulation.errors import SimulationError
from simulation.picture_tokens import QWEN3_VL_TOKENS
from simulation.scenario import Scenario
from simulation.spec import EngineSpec
from simulation.workloads import WORKLOADS, Load, Workload, find_workload

__all__ = ["picture_tokens", "run"]


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 with a message where something asked for cannot be, or no request was served."""
    if args.list:
        print("\n".join(_listing()))
        return 0
    try:
        return _run(args)
    except BrokenProcessPool:
        print(
            "sightline: a run's process was ended from outside (out of memory?): fewer --jobs",
            file=sys.stderr,
        )
        return 1
    except (ArgumentError, SimulationError, ValidationError) as error:
        print(f"sightline: {_first_line(error)}", file=sys.stderr)
        return 1


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return (
            f"{where}: {first['msg']}, got {first['input']!r:.80}"
            if where
            else first["msg"].removeprefix("Value error, ")
        )
    return str(error)


def _run(args: argparse.Namespace) -> int:
    workload = find_workload(args.workload)
    check_counts(args)
    check_workload(args, workload)
    check_outputs(args)
    draw = _report_writer(args)
    scenario = _scenario(args)
    jobs = list(_jobs(args, workload, scenario))
    runs: list[RatedRun] = []
    try:
        for job, result in zip(jobs, results(jobs, args.jobs), strict=True):
            runs.append(RatedRun(job.rate, result))
    finally:  # Ctrl-C: what has ended by then
        if runs and str(args.json) != "-":
            print("\n".join(table(runs)))
    if args.json is not None:
        write_json(args.json, as_json(workload.name, args.seed, scenario, runs))
    if draw is not None:
        try:
            print(f"report: {draw(args.report, workload, runs)}", file=sys.stderr)
        except OSError as error:
            raise ArgumentError(f"--report {args.report}: {error.strerror}") from error
    for line in _failures(runs):
        print(f"sightline: {line}", file=sys.stderr)
    return 0 if any(each.run.summary.served for each in runs) else 1


def _failures(runs: Sequence[RatedRun]) -> Iterator[str]:
    """Of each run that has some: how many, and why the first one was given up."""
    for each in runs:
        failed = [record.failure for record in each.run.records if not record.is_served]
        if failed:
            why = failed[0] or "not sent, because the turn before it failed"
            yield f"{title(each.run.policy, each.rate)}: {len(failed)} requests failed, the first: {why}"


def _report_writer(args: argparse.Namespace) -> Any:
    """Found before anything runs, so that a missing package is said at once."""
    if args.report is None:
        return None
    try:
        from app.simulate_report import write_report
    except ModuleNotFoundError as error:
        raise ArgumentError(f"--report draws with matplotlib: pip install matplotlib ({error})") from error
    return write_report


def _scenario(args: argparse.Namespace) -> Scenario:
    try:
        engine = EngineSpec(
            block_size=args.block_size,
            num_blocks=args.kv_tokens // args.block_size + 1,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.batched_tokens,
            max_model_len=1 << 20,
            encoder_budget_tokens=16384,
            encoder_cache_tokens=16384,
        )
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    return Scenario(
        num_workers=args.workers,
        engine=engine,
        profile=read_profile(args.profile),
        router=read_router(args.router),
        event_delay_ms=args.event_delay_ms,
        event_loss=args.event_loss,
        changes=read_changes(args.change),
        seed=args.seed,
    )


def _jobs(args: argparse.Namespace, workload: Workload, scenario: Scenario) -> Iterator[Job]:
    load = Load(
        rate_per_s=workload.rate_per_s,
        num_requests=args.requests or workload.num_requests,
        think_s=workload.think_s if args.think_s is None else args.think_s,
        seed=args.seed,
        picture_tokens=picture_tokens,
        sees_urls=args.identity == "url",
        trace=args.trace,
        picture_share=workload.picture_share if args.picture_share is None else args.picture_share,
    )
    policies = read_policies(args.policies)
    rates = read_rates(args.rate) if args.rate and workload.has_rate else [workload.rate_per_s]
    for rate in rates:
        sessions = workload.make(replace(load, rate_per_s=rate))
        for policy in policies:
            yield Job(rate if workload.has_rate else None, policy, sessions, scenario)


def _listing() -> Iterator[str]:
    from app.simulate_args import profiles

    for workload in WORKLOADS.values():
        rate = f" (default {workload.rate_per_s:g}/s)" if workload.rate_per_s and workload.has_rate else ""
        yield f"{workload.alias:3} {workload.name:15} {workload.about}{rate}"
    yield ""
    for name, profile in sorted(profiles().items()):
        yield f"{name:24} {profile.source}"


def picture_tokens(width: int, height: int) -> int:
    """Tokens of a picture in Qwen3-VL. Sizes beyond the built-in ones are the registry's business, which
    takes seconds to load.

    Raises:
        ArgumentError: the model's processor refuses the size.
    """
    known = QWEN3_VL_TOKENS.get((width, height))
    if known is not None:
        return known
    from processors.families.smart_resize import PatchGrid
    from processors.layout import LayoutRefused
    from sightline_types import ImageSize

    try:
        return PatchGrid(16, 2, 1 << 16, 1 << 24).num_tokens(ImageSize(width, height))
    except LayoutRefused as error:
        raise ArgumentError(str(error)) from error
