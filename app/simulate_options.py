"""The options of `sightline simulate` and `sightline trace`, apart from what they do: help is immediate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add_simulate_options", "add_trace_options"]

_ABOUT = """\
Serves a workload with a fleet of simulated engines behind the real router core: no GPU, no clock, no
network. Every policy gets the same arrivals; the same seed gives the same numbers on any machine.

  sightline simulate --workload W1 --rate 40 --policies kv,round_robin
  sightline simulate --workload W1 --rate 5,10,20,30,40 --policies all --report out/
  sightline simulate --workload W5 --trace conversation_trace.jsonl --json result.json
  sightline simulate --workload W4 --change 20:die:2 --change 30:join:1

Times are simulated milliseconds from the client's sending; hit and regret are shares of the prompt tokens.
"""

_TRACE = """\
Reads a log of OpenAI chat requests (JSON lines) and writes a trace for `sightline simulate` (docs/traces.md):
texts and addresses become hashes under a secret that is thrown away, so that equal ones stay equal and
nothing can be read or guessed. A line is a request, or
  {"request": ..., "response": ..., "timestamp": seconds}
where the response's usage tells the length of the answer. Text is counted as four bytes a token.
"""


def add_simulate_options(command: argparse.ArgumentParser) -> None:
    """The options, in groups."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description = _ABOUT
    command.add_argument("--list", action="store_true", help="name the workloads and the profiles, and end")
    _add_load(command.add_argument_group("what is asked"))
    _add_fleet(command.add_argument_group("who answers"))
    _add_output(command.add_argument_group("what is told"))


def _add_load(group: Any) -> None:
    group.add_argument("--workload", default="W1", metavar="NAME", help="see --list (default: W1)")
    group.add_argument("--rate", metavar="R[,R]", help="requests a second, one or more (default: its own)")
    group.add_argument(
        "--requests", type=int, metavar="N", help="requests (default: its own; W2: in whole users)"
    )
    group.add_argument("--think-s", type=float, metavar="S", help="mean pause of a user (closed loops)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    group.add_argument("--trace", type=Path, metavar="FILE", help="JSON lines, for W5 and T (docs/traces.md)")
    group.add_argument(
        "--picture-share", type=float, metavar="Q", help="of a Mooncake trace's blocks, shown as pictures"
    )
    group.add_argument(
        "--identity",
        choices=("normalized_url", "url"),
        default="normalized_url",
        help="whether a picture's signature is part of its identity, in W3 (default: it is not)",
    )


def _add_fleet(group: Any) -> None:
    group.add_argument(
        "--policies", default="kv,round_robin", metavar="P[,P]", help="or all (default: kv,round_robin)"
    )
    group.add_argument("--workers", type=int, default=8, metavar="N", help="(default: 8)")
    group.add_argument(
        "--profile", default="w1", metavar="NAME", help="how long steps take: a preset, or a JSON file"
    )
    group.add_argument(
        "--kv-tokens", type=int, default=640_000, metavar="N", help="KV cache of a worker (default: 640000)"
    )
    group.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens (default: 16)")
    group.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="(default: 256)")
    group.add_argument(
        "--batched-tokens", type=int, default=8192, metavar="N", help="of a step at most (default: 8192)"
    )
    group.add_argument(
        "--event-delay-ms", type=float, default=2.0, metavar="MS", help="worker to router (default: 2)"
    )
    group.add_argument("--event-loss", type=float, default=0.0, metavar="Q", help="share of messages lost")
    group.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="S:KIND:N",
        help="after S seconds: join N workers, or worker N (from 0) leaves or dies; may be repeated",
    )
    group.add_argument(
        "--router",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of `router:` (docs/configuration.md); may be repeated",
    )


def _add_output(group: Any) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures there; - is stdout")
    group.add_argument("--report", type=Path, metavar="DIR", help="write pictures and report.html there")
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")


def add_trace_options(command: argparse.ArgumentParser) -> None:
    """A log, and where the trace goes."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description = _TRACE
    command.add_argument("log", type=Path, metavar="LOG", help="JSON lines")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace")
    command.add_argument(
        "--size",
        default="1280x720",
        metavar="WxH",
        help="of a picture that is only an address (1280x720)",
    )
