"""Recorded traffic: Mooncake's trace format, and one of our own with pictures (docs/traces.md).

Both are JSON lines, one request each. Reading is strict: what cannot be read names its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulation.arrivals import replay
from simulation.errors import TraceError
from simulation.picture_tokens import PictureTokens
from simulation.prompts import Part, Picture, Session, Text, Turn, make_id, merged

__all__ = [
    "MOONCAKE_BLOCK_TOKENS",
    "MooncakeRequest",
    "Trace",
    "TracePart",
    "TraceRequest",
    "read_trace",
]

_Line = TypeVar("_Line", bound=BaseModel)

#: Tokens that one id of `hash_ids` stands for (Mooncake, FAST'25 release).
MOONCAKE_BLOCK_TOKENS = 512

#: Milliseconds from a trace's beginning, or between two turns: 100 years also hold times since 1970.
LONGEST_MS = 3.2e12
Millis = Annotated[float, Field(ge=0, le=LONGEST_MS, allow_inf_nan=False)]
#: Longer than any model's context; what is longer is a wrong number, and would fill the memory with keys.
MAX_TOKENS = 1 << 24


class MooncakeRequest(BaseModel):
    """timestamp: milliseconds. hash_ids: of each 512-token block; equal ids are equal prompts up to there."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    timestamp: Millis
    input_length: int = Field(ge=1, le=MAX_TOKENS)
    output_length: int = Field(ge=0, le=MAX_TOKENS)
    hash_ids: tuple[int, ...]

    @model_validator(mode="after")
    def _covers_the_prompt(self) -> MooncakeRequest:
        if len(self.hash_ids) * MOONCAKE_BLOCK_TOKENS < self.input_length:
            raise ValueError(f"{len(self.hash_ids)} hash_ids cannot hold {self.input_length} tokens")
        return self


class TracePart(BaseModel):
    """A run of text, or a picture: one of `text` and `picture` names it.

    tokens: its length; a picture may leave it out where `size` (1280x720) is there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | None = None
    picture: str | None = None
    tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    size: str | None = Field(None, pattern=r"^[1-9][0-9]{0,5}x[1-9][0-9]{0,5}$")

    @model_validator(mode="after")
    def _is_one_thing(self) -> TracePart:
        if (self.text is None) == (self.picture is None):
            raise ValueError("a part has either `text` or `picture`")
        if self.tokens is None and (self.text is not None or self.size is None):
            raise ValueError("`tokens` is missing (a picture may give its `size` instead)")
        return self


class TraceRequest(BaseModel):
    """One line of our own format.

    at_ms: when it was sent. output: names the answer, where a later request quotes it as `text`.
    session, think_ms: it follows the session's line before, so long after the end of its answer; without
    `think_ms` it is sent at `at_ms`, whatever became of others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_ms: Millis
    parts: tuple[TracePart, ...] = Field(min_length=1)
    output_tokens: int = Field(ge=1, le=MAX_TOKENS)
    output: str | None = None
    session: str | None = None
    think_ms: Millis | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """format: which of the two it is. sessions: at their own times."""

    format: Literal["mooncake", "sightline"]
    sessions: tuple[Session, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    def replayed(self, *, speed: float = 1.0, limit: int | None = None) -> tuple[Session, ...]:
        """From 0, `speed` times as fast; the first `limit` requests (`arrivals.replay`)."""
        return replay(self.sessions, speed=speed, limit=limit)


def read_trace(path: Path, picture_tokens: PictureTokens, *, picture_share: float = 0.0) -> Trace:
    """Of either format: lines with `hash_ids` are Mooncake's.

    picture_share: this share of Mooncake's full blocks is taken to be pictures of the same length, the same
    blocks each time (no public trace has pictures).

    Raises:
        TraceError: it cannot be read.
    """
    lines = list(_lines(path))
    if not lines:
        raise TraceError(f"{path}: no requests in it")
    if "hash_ids" in lines[0][1]:
        asked = (_parse(MooncakeRequest, path, number, data) for number, data in lines)
        return Trace("mooncake", tuple(_from_mooncake(each, picture_share) for each in asked))
    own = [_parse(TraceRequest, path, number, data) for number, data in lines]
    return Trace("sightline", tuple(_sessions(own, picture_tokens)))


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):  # a name may have other line ends in it
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except RecursionError as error:
            raise TraceError(f"{path}, line {number}: nested too deeply") from error
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(data, dict):
            raise TraceError(f"{path}, line {number}: an object a line is expected, got {line[:40]!r}")
        yield number, data


def _parse(kind: type[_Line], path: Path, number: int, data: dict[str, Any]) -> _Line:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise TraceError(
            f"{path}, line {number}: {where}: {first['msg'].removeprefix('Value error, ')}"
        ) from error


def _from_mooncake(asked: MooncakeRequest, picture_share: float) -> Session:
    left = asked.input_length
    parts: list[Part] = []
    for block in asked.hash_ids:
        size = min(left, MOONCAKE_BLOCK_TOKENS)
        name = make_id("block", block)
        is_picture = (
            size == MOONCAKE_BLOCK_TOKENS and make_id("kind", block) % 10_000 < picture_share * 10_000
        )
        parts.append(Picture(name, size) if is_picture else Text(name, size))
        left -= size
    answer = make_id("answer", asked.hash_ids[-1], asked.timestamp, asked.output_length)
    turn = Turn(merged(parts), max(1, asked.output_length), answer)
    return Session(asked.timestamp, (turn,))


def _sessions(lines: Iterable[TraceRequest], picture_tokens: PictureTokens) -> Iterator[Session]:
    """Lines that follow another one, in its session; the others each in one of its own."""
    opened: dict[str, tuple[float, list[Turn]]] = {}
    alone = 0
    for line in sorted(lines, key=lambda line: line.at_ms):
        turn = _turn(line, picture_tokens)
        alone += 1
        name = line.session if line.session is not None else f"\0{alone}"
        known = opened.get(name)
        if known is not None and line.think_ms is not None:
            known[1].append(turn)
            continue
        if known is not None:
            yield Session(known[0], tuple(known[1]))
        opened[name] = (line.at_ms, [turn])
    for start_ms, turns in opened.values():
        yield Session(start_ms, tuple(turns))


def _turn(line: TraceRequest, picture_tokens: PictureTokens) -> Turn:
    parts = merged(_part(part, picture_tokens) for part in line.parts)
    name = line.output if line.output is not None else make_id(line.at_ms, line.session, *line.parts)
    return Turn(parts, line.output_tokens, make_id("text", name), line.think_ms or 0.0)


def _part(part: TracePart, picture_tokens: PictureTokens) -> Part:
    if part.text is not None:
        return Text(make_id("text", part.text), part.tokens or 0)
    if part.tokens is not None:
        tokens = part.tokens
    else:
        width, height = (int(side) for side in (part.size or "").split("x"))
        tokens = picture_tokens(width, height)
    return Picture(make_id("picture", part.picture), tokens, part.size or "")
