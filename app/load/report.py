"""What is printed and written of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.load.plan import Plan
from app.load.samples import Sample
from app.load.session import Outcome
from app.load.summary import Overlap, Spread, Summary, summarize
from app.load.texts import TokenRate

__all__ = ["Report", "make_report"]

SCHEMA = 1
_ERRORS_SHOWN = 8
_WORKERS_SHOWN = 16
#: Above this share of a core, a sender is part of what was measured.
_BUSY_SENDER = 0.7


@dataclass(frozen=True)
class Report:
    """cpu_s: processor seconds by group of processes, over the measured part and its drain.

    watched: processes of each group, children not counted.
    """

    plan: Plan
    model: str
    token_rate: TokenRate
    summary: Summary
    samples: Sequence[Sample]
    began: float
    elapsed_s: float
    cpu_s: dict[str, float]
    watched: dict[str, int]
    outcomes: Sequence[Outcome]
    machine: dict[str, Any]
    versions: dict[str, str]

    @property
    def is_interrupted(self) -> bool:
        return any(outcome.is_stopped for outcome in self.outcomes)

    @property
    def cpu_ms_per_request(self) -> dict[str, float]:
        """By group: processor time over all requests that ended, failed ones included."""
        count = self.summary.requests
        return {name: seconds * 1000 / count for name, seconds in self.cpu_s.items()} if count else {}

    @property
    def warnings(self) -> list[str]:
        found = []
        busiest = max((outcome.cpu_s for outcome in self.outcomes), default=0.0)
        if self.elapsed_s and busiest / self.elapsed_s > _BUSY_SENDER:
            share = busiest / self.elapsed_s
            found.append(f"a sender used {share:.0%} of a core: it may be the limit (--processes)")
        failed = sum(outcome.warmup_failed for outcome in self.outcomes)
        if failed:
            found.append(f"{failed} requests of the warm-up failed")
        unprepared = sum(outcome.unprepared for outcome in self.outcomes)
        if unprepared:
            found.append(f"{unprepared} bodies were made during the run: the client's cost includes them")
        if self.summary.resent:
            found.append(f"{self.summary.resent} requests were sent twice: a kept connection had been closed")
        unsent = sum(outcome.unsent for outcome in self.outcomes)
        if unsent:
            found.append(
                f"{unsent} requests were due but never sent, because --max-outstanding were under way: "
                "the latencies lack them"
            )
        return found

    def described(self) -> dict[str, Any]:
        """All of it but the samples, for JSON; docs/load_generator.md explains the fields."""
        plan = self.plan
        return {
            "schema": SCHEMA,
            "profile": plan.profile,
            "workload": plan.workload.described(),
            "loop": _loop(plan),
            "target": plan.target.url,
            "model": self.model,
            "max_tokens": plan.max_tokens,
            "stream": plan.is_streamed,
            "body": dict(plan.extra),
            "seed": plan.seed,
            "warmup_requests": plan.warmup_requests,
            "processes": plan.processes,
            "tokens_per_word": self.token_rate.per_word if self.token_rate.is_measured else None,
            "interrupted": self.is_interrupted,
            "summary": self.summary.described(),
            "cpu_s": self.cpu_s,
            "watched_processes": self.watched,
            "cpu_ms_per_request": self.cpu_ms_per_request,
            "warnings": self.warnings,
            "server": next((s.server for s in self.samples if s.server), ""),
            "machine": self.machine,
            "versions": self.versions,
        }

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.described(), indent=2) + "\n")

    def write_rows(self, path: Path) -> None:
        """One line of JSON a request, in the order in which they were sent."""
        rows = sorted(self.samples, key=lambda s: s.sent)
        path.write_text("".join(json.dumps(s.row(self.began)) + "\n" for s in rows))

    def text(self) -> str:
        lines = [*self._about(), "", *self._latencies(), "", *self._counts(), "", *self._cpu()]
        lines += [f"note: {warning}" for warning in self.warnings]
        if self.is_interrupted:
            lines.append("note: interrupted; this is what was measured until then")
        return "\n".join(lines)

    def _about(self) -> list[str]:
        plan, machine = self.plan, self.machine
        numbers = ", ".join(f"{k} {v}" for k, v in plan.workload.described().items() if k != "kind")
        load = machine["load_average"][0]
        after = machine["load_average_after"][0]
        loop = _loop(plan)
        how = ", ".join(f"{k} {v}" for k, v in loop.items() if k != "kind" and v is not None)
        return [
            f"{plan.profile}: {plan.workload.kind.value} ({numbers}), max_tokens {plan.max_tokens}",
            f"{loop['kind']} loop: {how}; {plan.target.url}, model {self.model}, seed {plan.seed}",
            f"{machine['cpu']}, {machine['cores']} cores, load average {load} before, {after} after",
        ]

    def _latencies(self) -> list[str]:
        latency = self.summary.latency_ms
        names = {"ttft": "TTFT", "itl": "ITL", "gap": "between pieces", "e2e": "end to end"}
        if self.plan.open is not None:
            names |= {"ttft_from_sent": "TTFT from sent", "e2e_from_sent": "end to end from sent"}
        rows = [(label, latency[name]) for name, label in names.items()]
        if self.plan.open is not None:
            rows.append(("sent late", self.summary.late_ms))
        head = f"{'ms':22}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}{'mean':>10}"
        return [head, *(f"{label:22}{_figures(spread)}" for label, spread in rows if spread is not None)]

    def _counts(self) -> list[str]:
        s = self.summary
        lines = [
            f"{s.rate:.1f} requests/s, {s.output_tokens_rate:.0f} output tokens/s over {s.window_s:.1f} s",
            f"{s.good} good, {s.requests - s.good} failed; "
            f"{s.bytes_out / 1e6:.1f} MB sent, {s.bytes_in / 1e6:.1f} MB received",
        ]
        lines += [f"  failed: {count} x {kind}" for kind, count in list(s.errors.items())[:_ERRORS_SHOWN]]
        if s.prompt_tokens is not None:
            cached = "not told" if s.cached_share is None else f"{s.cached_share:.1%}"
            lines.append(f"prompt tokens p50 {s.prompt_tokens.p50:.0f}, cached {cached}")
        if s.workers:
            lines.append("workers: " + _shares(s.workers))
            lines.append("reasons: " + _shares(s.reasons))
            lines.append(f"blocks held {_overlap(s.overlap)}, of pictures {_overlap(s.media_overlap)}")
        if s.turns_ttft_p50_ms:
            turns = ", ".join(f"{turn + 1}: {ms:.1f}" for turn, ms in s.turns_ttft_p50_ms.items())
            lines.append(f"TTFT p50 by turn, ms: {turns}")
        return lines

    def _cpu(self) -> list[str]:
        each = self.cpu_ms_per_request
        lines = [f"{'processor time':22}{'ms/request':>12}{'of a core':>12}"]
        for name, seconds in self.cpu_s.items():
            share = seconds / self.elapsed_s if self.elapsed_s else 0.0
            count = self.watched.get(name, 1)
            label = name if count == 1 else f"{name} ({count})"
            lines.append(f"{label:22}{each.get(name, 0.0):12.3f}{share:12.0%}")
        return lines


def make_report(
    plan: Plan,
    model: str,
    rate: TokenRate,
    outcomes: Sequence[Outcome],
    cpu_s: dict[str, float],
    watched: dict[str, int],
    machine: dict[str, Any],
    versions: dict[str, str],
) -> Report:
    """cpu_s: of the groups that were watched; the senders' own is added as `client`."""
    measured = [outcome for outcome in outcomes if outcome.samples]
    samples = [sample for outcome in measured for sample in outcome.samples]
    began = min((outcome.began for outcome in measured), default=0.0)
    elapsed = max((outcome.ended for outcome in measured), default=0.0) - began
    window = elapsed
    is_stopped = any(outcome.is_stopped for outcome in outcomes)
    if plan.limit.duration_s is not None and not is_stopped:
        window = plan.limit.duration_s if plan.limit.requests is None else min(elapsed, plan.limit.duration_s)
    cpu = {**cpu_s, "client": sum(outcome.cpu_s for outcome in outcomes)}
    summary = summarize(samples, began, window)
    return Report(
        plan, model, rate, summary, samples, began, elapsed, cpu, watched, outcomes, machine, versions
    )


def _loop(plan: Plan) -> dict[str, Any]:
    limit = {"requests": plan.limit.requests, "duration_s": plan.limit.duration_s}
    if plan.open is None:
        return {"kind": "closed", "concurrency": plan.concurrency} | limit
    arrivals = "poisson" if plan.open.is_poisson else "constant"
    outstanding = plan.open.max_outstanding
    return {
        "kind": "open",
        "rate": plan.open.rate,
        "arrivals": arrivals,
        "max_outstanding": outstanding,
    } | limit


def _figures(s: Spread) -> str:
    return "".join(f"{value:10.2f}" for value in (s.p50, s.p90, s.p99, s.max, s.mean))


def _shares(tally: dict[str, int]) -> str:
    total = sum(tally.values())
    shown = [f"{name} {count / total:.0%}" for name, count in list(tally.items())[:_WORKERS_SHOWN]]
    return ", ".join(shown) + (", ..." if len(tally) > len(shown) else "")


def _overlap(overlap: Overlap) -> str:
    share = f" ({overlap.held / overlap.asked:.1%})" if overlap.asked else ""
    return f"{overlap.held}/{overlap.asked}{share}"
