"""Option values of `sightline simulate`, each read strictly: a wrong one is named, with what would do."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from router import RouterConfig
from simulation.presets import PRESETS
from simulation.profile import Profile
from simulation.scenario import POLICIES, Change
from simulation.workloads import Workload

__all__ = [
    "ArgumentError",
    "check_counts",
    "check_outputs",
    "check_workload",
    "profiles",
    "read_changes",
    "read_policies",
    "read_profile",
    "read_rates",
    "read_router",
]


#: What a run may have at most: more would fill the memory for hours before the first figure.
_MOST = {"requests": 2_000_000, "workers": 10_000, "jobs": 1024}
_LONGEST_PAUSE_S = 86_400.0


class ArgumentError(ValueError):
    """A value on the command line that cannot be used. The message says the value and what would do."""


def check_counts(args: argparse.Namespace) -> None:
    """Raises ArgumentError where a number of things is below 1 or beyond reason, or a share is none."""
    for name in ("requests", "workers", "kv_tokens", "block_size", "max_num_seqs", "batched_tokens", "jobs"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ArgumentError(f"--{name.replace('_', '-')} {value}: at least 1")
        if value is not None and value > _MOST.get(name, value):
            raise ArgumentError(f"--{name.replace('_', '-')} {value}: at most {_MOST[name]}")
    if args.kv_tokens < args.block_size:
        raise ArgumentError(f"--kv-tokens {args.kv_tokens}: not one block of --block-size {args.block_size}")
    share, pause = args.picture_share, args.think_s
    if share is not None and not 0 <= share <= 1:
        raise ArgumentError(f"--picture-share {share}: from 0 to 1")
    if pause is not None and not 0 <= pause <= _LONGEST_PAUSE_S:
        raise ArgumentError(f"--think-s {pause}: from 0 to {_LONGEST_PAUSE_S:g} seconds")


def check_workload(args: argparse.Namespace, workload: Workload) -> None:
    """Raises ArgumentError for an option that this workload would not read."""
    name = workload.alias
    if args.trace is not None and not workload.needs_trace:
        raise ArgumentError(
            f"--trace {args.trace}: {name} makes its own requests; --workload T replays a trace"
        )
    if args.picture_share is not None and not workload.needs_trace:
        raise ArgumentError(f"--picture-share {args.picture_share}: {name} replays no trace")
    if args.rate is not None and not workload.has_rate:
        raise ArgumentError(f"--rate {args.rate}: in {name}, a closed loop, users wait for their answers")
    if args.think_s is not None and workload.has_rate:
        raise ArgumentError(f"--think-s {args.think_s}: {name} is not a closed loop, as W2 is")


def check_outputs(args: argparse.Namespace) -> None:
    """Before anything runs. Raises ArgumentError where a result could not be written afterwards."""
    if args.json is not None and str(args.json) != "-":
        if not args.json.parent.is_dir():
            raise ArgumentError(f"--json {args.json}: there is no folder {args.json.parent}")
        if args.json.is_dir():
            raise ArgumentError(f"--json {args.json}: is a folder")
        if not os.access(args.json if args.json.exists() else args.json.parent, os.W_OK):
            raise ArgumentError(f"--json {args.json}: may not be written")
    if args.report is not None:
        try:
            args.report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"--report {args.report}: {error.strerror}") from error
        if not os.access(args.report, os.W_OK | os.X_OK):
            raise ArgumentError(f"--report {args.report}: may not be written")


def read_rates(text: str) -> list[float]:
    """Requests a second, divided by commas."""
    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise ArgumentError(f"--rate {text!r}: numbers divided by commas, such as 5,20,40") from error
    if not all(0 < rate <= 1e6 for rate in rates):
        raise ArgumentError(f"--rate {text!r}: above 0, and at most 1000000 requests a second")
    return rates


def read_policies(text: str) -> tuple[str, ...]:
    """Names divided by commas, or all."""
    names = POLICIES if text == "all" else tuple(text.split(","))
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise ArgumentError(f"--policies: no policy {unknown[0]!r}: there are {', '.join(POLICIES)}, or all")
    return tuple(dict.fromkeys(names))


def read_changes(texts: Sequence[str]) -> tuple[Change, ...]:
    """SECONDS:KIND:NUMBER each."""
    changes = []
    for text in texts:
        at_s, _, rest = text.partition(":")
        kind, _, number = rest.partition(":")
        try:
            changes.append(Change.model_validate({"at_s": at_s, "kind": kind, "number": number or 1}))
        except ValidationError as error:
            raise ArgumentError(
                f"--change {text!r}: SECONDS:KIND:NUMBER, such as 20:die:2; KIND is join, leave or die, "
                "NUMBER at most 10000"
            ) from error
    return tuple(changes)


def read_router(texts: Sequence[str]) -> RouterConfig:
    """NAME=VALUE each, as under `router:`; values are JSON where they can be read so."""
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in RouterConfig.model_fields:
            raise ArgumentError(f"--router {text!r}: NAME=VALUE with a setting of `router:`")
        if name == "policy":
            raise ArgumentError(f"--router {text!r}: the policies that are compared are named by --policies")
        try:
            given[name] = json.loads(value)
        except ValueError:
            given[name] = value
    return RouterConfig.model_validate(given)


def profiles() -> Mapping[str, Profile]:
    """The presets, by name."""
    return PRESETS


def read_profile(text: str) -> Profile:
    """A preset by its name, or a JSON file of a profile's numbers."""
    presets = profiles()
    if text in presets:
        return presets[text]
    path = Path(text)
    if not path.suffix:
        raise ArgumentError(f"--profile: no preset {text!r}: there are {', '.join(sorted(presets))}")
    try:
        return Profile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"--profile {text}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise ArgumentError(f"--profile {text}: {what}") from error
