"""What clients send, without tokens or pixels: prompts as runs of named text and pictures, turn by turn.

Two parts of the same id are the same text (the shorter one a prefix of the longer) or the same picture.
That is all a cache can tell, so no tokenizer and no template take part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

__all__ = ["Part", "Picture", "Session", "Text", "Turn", "make_id", "merged"]


def make_id(*names: object) -> int:
    """63 bits of a name; the same for the same names, in any process."""
    return xxhash.xxh3_64_intdigest("/".join(map(str, names)).encode("utf-8", "surrogatepass")) >> 1


@dataclass(frozen=True, slots=True)
class Text:
    """A run of text. tokens: its length, 0 or more."""

    text_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture. media_id: 64 bits. tokens: what it takes in the prompt, all filled by the encoder.

    size: for people, such as 1280x720; empty where it is not known.
    """

    media_id: int
    tokens: int
    size: str = ""


Part = Text | Picture


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. output_id: the text that the model answers with, for a later turn to quote.

    think_ms: from the end of the session's turn before (or the session's start) until it is sent.
    """

    parts: tuple[Part, ...]
    output_tokens: int
    output_id: int
    think_ms: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(part for part in self.parts if isinstance(part, Picture))


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow one another: each is sent when the answer to the one before has ended.

    start_ms: from the beginning of the run. A single request is a session of one turn.
    """

    start_ms: float
    turns: tuple[Turn, ...] = field(default_factory=tuple)


def merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Without the parts that have no tokens."""
    return tuple(part for part in parts if part.tokens > 0)
