"""`sightline fit-profile`: a profile for the simulated engine from bench runs against a real endpoint."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from simulation.bench_rows import BenchRow, fit_rows, read_rows
from simulation.fitting import FitError

__all__ = ["add_arguments", "run"]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("rows", nargs="+", type=Path, metavar="ROWS", help="files of `bench --rows`, text")
    command.add_argument(
        "--pictures",
        action="append",
        default=[],
        type=_sized,
        metavar="TOKENS=ROWS",
        help="rows of requests with pictures of so many encoder tokens each, never the same one (`bench "
        "--repeat new`); may be repeated, for several sizes",
    )
    command.add_argument("--name", default="fitted", help="of the profile (default: fitted)")


def _sized(text: str) -> tuple[int, Path]:
    tokens, _, path = text.partition("=")
    if not tokens.isdecimal() or not int(tokens) or not path:
        raise argparse.ArgumentTypeError(f"{text!r}: TOKENS=ROWS, such as 920=pictures.jsonl")
    return int(tokens), Path(path)


def run(args: argparse.Namespace) -> int:
    """Prints YAML for `simulation.profile`, and on stderr what the fit leaves. 1: it cannot be fitted."""
    try:
        text = [row for path in args.rows for row in read_rows(path)]
        pictures: dict[int, list[BenchRow]] = {}
        for tokens, path in args.pictures:
            pictures.setdefault(tokens, []).extend(read_rows(path))
        found = fit_rows(text, pictures, name=args.name, source=_source(args))
    except FitError as error:
        print(f"sightline: {error}", file=sys.stderr)
        return 1
    values: dict[str, Any] = {"profile": found.profile.model_dump()}
    print(yaml.safe_dump(values, sort_keys=False), end="")
    for kind, error_left in found.errors.items():
        print(f"{kind}: off by {error_left:.1%} on average", file=sys.stderr)
    return 0


def _source(args: argparse.Namespace) -> str:
    files = [*args.rows, *(path for _, path in args.pictures)]
    return "fitted to " + ", ".join(path.name for path in files)
