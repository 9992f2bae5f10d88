"""What `sightline simulate` says: a table for people, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.simulate_args import ArgumentError
from simulation.fleet import FleetRun
from simulation.scenario import Scenario

__all__ = ["RatedRun", "as_json", "table", "write_json"]

_COLUMNS = (
    "rate", "policy", "tokens/s", "TTFT p50", "p90", "p99", "ITL p50", "p99", "e2e p50", "p99", "hit",
    "regret", "imbalance", "failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RatedRun:
    """One policy at one rate. rate: requests a second; None where the workload has its own."""

    rate: float | None
    run: FleetRun


def table(runs: Sequence[RatedRun]) -> list[str]:
    """Times in milliseconds; hit and regret in percent of the prompt tokens."""
    rows = [_COLUMNS, *(_row(each) for each in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        text.ljust(width) if place == 1 else text.rjust(width)
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _row(each: RatedRun) -> tuple[str, ...]:
    summary = each.run.summary
    ttft, itl, e2e = summary.ttft_ms, summary.itl_ms, summary.e2e_ms
    return (
        "-" if each.rate is None else f"{each.rate:g}",
        each.run.policy,
        f"{summary.output_tokens_per_s:.0f}",
        *(f"{value:.0f}" for value in (ttft.p50, ttft.p90, ttft.p99)),
        f"{itl.p50:.1f}",
        f"{itl.p99:.1f}",
        *(f"{value:.0f}" for value in (e2e.p50, e2e.p99)),
        f"{summary.hit_rate:.1%}",
        f"{summary.regret_rate:.1%}",
        f"{summary.imbalance:.2f}",
        str(summary.failures),
    )


def as_json(workload: str, seed: int, scenario: Scenario, runs: Sequence[RatedRun]) -> dict[str, Any]:
    """Nothing in it depends on the machine or the hour: the same seed gives the same text."""
    return {
        "workload": workload,
        "seed": seed,
        "scenario": {**scenario.model_dump(mode="json"), "engine": asdict(scenario.engine)},
        "runs": [
            {"rate_per_s": each.rate, "policy": each.run.policy, **asdict(each.run.summary)} for each in runs
        ],
    }


def write_json(path: Path, said: dict[str, Any]) -> None:
    """`-` is stdout.

    Raises:
        ArgumentError: it cannot be written there.
    """
    text = json.dumps(said, indent=1)
    if str(path) == "-":
        print(text)
        return
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"--json {path}: {error.strerror}") from error
