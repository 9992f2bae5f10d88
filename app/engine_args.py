"""Engine arguments as text: what `SIGHTLINE_ENGINE_ARGS` holds."""

from __future__ import annotations

import json
import shlex
from typing import Any

__all__ = ["parse_engine_args"]


def parse_engine_args(text: str) -> dict[str, Any]:
    """Engine arguments as JSON (`{"max_num_seqs": 8}`) or as flags (`--max-num-seqs 8 --enforce-eager`).

    A flag without a value is true, `--no-x` makes x false, several values make a list; a value is
    read as JSON where it is JSON and as a string otherwise.

    Raises:
        ValueError: neither of the two.
    """
    if text.lstrip().startswith("{"):
        return _parse_json(text)
    flags: list[tuple[str, list[Any]]] = []
    for word in shlex.split(text):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append((name.replace("-", "_"), [_parse_value(value)] if equals else []))
        elif flags:
            flags[-1][1].append(_parse_value(word))
        else:
            raise ValueError(f"{word!r} stands before any flag such as --max-num-seqs")
    return dict(_argument(name, values) for name, values in flags)


def _parse_json(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def _argument(name: str, values: list[Any]) -> tuple[str, Any]:
    if not values:
        return (name[3:], False) if name.startswith("no_") else (name, True)
    return name, values[0] if len(values) == 1 else values


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
