"""Pictures of simulated runs, drawn with matplotlib (an extra: `pip install matplotlib`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from app.simulate_output import RatedRun
from simulation.fleet import FleetRun
from simulation.metrics import Summary

__all__ = ["figures"]

_INCHES_WIDE = 9.0
_WORKERS_NAMED = 10
_Value = Callable[[Summary], float]

_BY_RATE: tuple[tuple[str, str, str, bool, _Value], ...] = (
    ("ttft", "Time to the first token, 90th percentile", "ms", True, lambda s: s.ttft_ms.p90),
    ("tokens", "Output tokens a second", "tokens/s", False, lambda s: s.output_tokens_per_s),
    ("hit_rate", "Prompt tokens found in the cache", "%", False, lambda s: 100 * s.hit_rate),
)


def figures(runs: Sequence[RatedRun]) -> dict[str, tuple[str, Figure]]:
    """By file name, with what each shows. Loads and pictures' homes are of the highest rate."""
    drawn = {
        name: (title, _by_rate(runs, title, unit, value, is_log=is_log))
        for name, title, unit, is_log, value in _BY_RATE
    }
    last = [each.run for each in runs if each.rate == runs[-1].rate]
    drawn["load"] = ("Requests running and waiting at each worker", _loads(last))
    if any(run.samples.homes for run in last):
        drawn["homes"] = ("Where each picture lived: share of the time that it was in a cache", _homes(last))
    return drawn


def _by_rate(runs: Sequence[RatedRun], title: str, unit: str, value: _Value, *, is_log: bool) -> Figure:
    figure = Figure(figsize=(_INCHES_WIDE, 4.5), layout="constrained")
    axes = figure.subplots()
    by_policy = groupby(sorted(runs, key=lambda each: each.run.policy), key=lambda each: each.run.policy)
    series = [
        (policy, [(each.rate or 0.0, value(each.run.summary)) for each in group])
        for policy, group in by_policy
    ]
    if max(len(points) for _, points in series) > 1:
        for policy, points in series:
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=policy)
        axes.set_xlabel("requests a second")
        axes.legend(fontsize="small")
    else:
        axes.bar([policy for policy, _ in series], [points[0][1] for _, points in series])
        axes.tick_params(axis="x", rotation=20)
    if is_log:
        axes.set_yscale("log")
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    return figure


def _loads(runs: Sequence[FleetRun]) -> Figure:
    """One row a policy, one line a worker, to its death; all rows have the same height in requests."""
    figure = Figure(figsize=(_INCHES_WIDE, 1.0 + 1.7 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, run in zip(rows, runs, strict=True):
        by_worker: dict[str, list[tuple[float, int]]] = {}
        for sample in run.samples.loads:
            if sample.alive:
                by_worker.setdefault(sample.worker, []).append(
                    (sample.at_ms / 1e3, sample.running + sample.waiting)
                )
        for worker, points in by_worker.items():
            axes.plot(*zip(*points, strict=True), linewidth=0.8, label=worker)
        axes.set_title(run.policy, fontsize="small", loc="left")
        axes.set_ylabel("requests")
        axes.grid(alpha=0.3)
        if 0 < len(by_worker) <= _WORKERS_NAMED:
            axes.legend(fontsize="xx-small", ncols=2, loc="upper right")
    rows[-1].set_xlabel("seconds")
    return figure


def _homes(runs: Sequence[FleetRun]) -> Figure:
    """One map a policy: pictures from left to right as they came, workers from top to bottom."""
    figure = Figure(figsize=(_INCHES_WIDE, 1.0 + 1.5 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    image: Any = None
    for axes, run in zip(rows, runs, strict=True):
        workers = sorted({sample.worker for sample in run.samples.loads})
        places = {worker: place for place, worker in enumerate(workers)}
        shares = np.zeros((len(workers), max(1, len(run.samples.homes))))
        for picture, at in enumerate(run.samples.homes.values()):
            for worker, looks in at.items():
                shares[places[worker], picture] = looks / run.samples.num_looks
        image = axes.imshow(shares, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
        axes.set_title(run.policy, fontsize="small", loc="left")
        axes.set_ylabel("worker")
    rows[-1].set_xlabel("picture")
    figure.colorbar(image, ax=list(rows), label="share of the time")
    return figure
