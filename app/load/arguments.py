"""The options of `sightline bench`. Light to import: the command's help needs nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add_arguments"]


def add_arguments(command: argparse.ArgumentParser) -> None:
    _target(command.add_argument_group("endpoint"))
    _workload(command.add_argument_group("workload"))
    _loop(command.add_argument_group("loop"))
    _cpu(command.add_argument_group("processor time"))
    _output(command.add_argument_group("output"))


def _target(group: Any) -> None:
    group.add_argument(
        "--url", default="http://127.0.0.1:8000", help="of the endpoint (default: http://127.0.0.1:8000)"
    )
    group.add_argument("--model", metavar="NAME", help="(default: the first that /v1/models names)")
    group.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="sent with each request, such as 'authorization: Bearer ...'; may be repeated",
    )
    group.add_argument("--timeout", type=float, default=60.0, metavar="S", help="of a request (default: 60)")


def _workload(group: Any) -> None:
    group.add_argument(
        "--profile",
        default="32",
        metavar="NAME",
        help="32, 8k, data64, datanew, http64, httpnew, or a kind to be sized by the options below: text, "
        "shared_prefix, data_picture, http_picture, multi_turn (default: 32)",
    )
    group.add_argument(
        "--prompt-tokens", type=int, metavar="N", help="of a text, a question, or a turn (default: 32)"
    )
    group.add_argument("--shared-tokens", type=int, metavar="N", help="of a shared prefix (default: 7168)")
    group.add_argument("--shared-count", type=int, metavar="N", help="different prefixes (default: 16)")
    group.add_argument("--new-tokens", type=int, metavar="N", help="after a shared prefix (default: 1024)")
    group.add_argument("--pictures", type=int, metavar="N", help="in each request (default: 1)")
    group.add_argument(
        "--repeat", metavar="N", help="different pictures, or `new`: never the same (default: 64)"
    )
    group.add_argument("--picture-size", metavar="WxH", help="in pixels (default: 1024x768)")
    group.add_argument("--picture-bytes", type=int, metavar="N", help="of a file, about (default: 323000)")
    group.add_argument("--turns", type=int, metavar="N", help="of a conversation (default: 8)")
    group.add_argument(
        "--conversations", type=int, metavar="N", help="kept going in turn (default: the concurrency)"
    )
    group.add_argument("--max-tokens", type=int, default=8, metavar="N", help="of an answer (default: 8)")
    group.add_argument(
        "--body",
        default="{}",
        metavar="JSON",
        help="more fields of each request, such as '{\"ignore_eos\": true}'",
    )
    group.add_argument("--no-stream", action="store_true", help="ask for whole answers")
    group.add_argument("--no-usage", action="store_true", help="do not ask for usage in streams")
    group.add_argument(
        "--no-calibration",
        action="store_true",
        help="take a word for a token, instead of measuring it with two requests",
    )
    group.add_argument("--seed", metavar="TEXT", help="the same requests again (default: new ones)")
    group.add_argument(
        "--picture-host", metavar="NAME", help="this machine's name in picture addresses (default: bind's)"
    )
    group.add_argument(
        "--picture-bind",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="of the image server (default: 127.0.0.1)",
    )


def _loop(group: Any) -> None:
    group.add_argument(
        "-c", "--concurrency", type=int, default=16, metavar="N", help="closed loop: requests under way (16)"
    )
    group.add_argument(
        "--rate", type=float, metavar="R", help="open loop: requests a second, answered or not"
    )
    group.add_argument(
        "--arrivals", choices=("poisson", "constant"), default="poisson", help="of the open loop (poisson)"
    )
    group.add_argument(
        "--max-outstanding",
        type=int,
        default=1024,
        metavar="N",
        help="open loop: never more under way (1024)",
    )
    group.add_argument("--duration", type=float, metavar="S", help="seconds of sending (default: 10)")
    group.add_argument("-n", "--requests", type=int, metavar="N", help="instead of, or beside, a duration")
    group.add_argument(
        "--warmup",
        type=int,
        metavar="N",
        help="requests before the measured ones (default: twice the concurrency, and all that repeats once)",
    )
    group.add_argument("--processes", type=int, default=1, metavar="N", help="that send (default: 1)")


def _cpu(group: Any) -> None:
    group.add_argument(
        "--pid",
        action="append",
        default=[],
        metavar="NAME=PID[,PID...]",
        help="a group of processes to watch, with their children; may be repeated",
    )
    group.add_argument(
        "--process-match",
        action="append",
        default=[],
        metavar="NAME=REGEX",
        help="the same, by command line; may be repeated",
    )
    group.add_argument(
        "--sightline", action="store_true", help="the same, for Sightline's own processes here"
    )
    group.add_argument(
        "--within", type=int, metavar="PID", help="matches count only below this process, such as a raylet"
    )


def _output(group: Any) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="all figures, with workload and machine")
    group.add_argument("--rows", type=Path, metavar="FILE", help="one line of JSON a request")
    group.add_argument("-q", "--quiet", action="store_true", help="no table")
