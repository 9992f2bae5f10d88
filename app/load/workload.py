"""What is asked: a workload's numbers, and the named ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from app.load.errors import UsageError

__all__ = ["NAMED", "Kind", "Workload", "named"]


#: Of tokens in one text, and of pixels in one picture: more would fill this machine before the endpoint.
MOST_TOKENS = 10_000_000
MOST_PIXELS = 1 << 26


class Kind(StrEnum):
    TEXT = "text"
    SHARED_PREFIX = "shared_prefix"
    DATA_PICTURE = "data_picture"
    HTTP_PICTURE = "http_picture"
    MULTI_TURN = "multi_turn"


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of request, and how large.

    prompt_tokens: of the whole prompt (text), of the question beside pictures, of each turn (multi_turn).
    shared_tokens, shared_count, new_tokens: a prompt is one of `shared_count` texts of `shared_tokens`, and
        `new_tokens` that are never sent again (shared_prefix).
    pictures: in each request. repeat: different pictures there are; None: every one is new.
    picture_size: width, height in pixels. picture_bytes: about, of a file.
    turns: of a conversation; conversations: held at the same time, in turn (None: one per request under way).
    """

    kind: Kind
    prompt_tokens: int = 32
    shared_tokens: int = 7168
    shared_count: int = 16
    new_tokens: int = 1024
    pictures: int = 1
    repeat: int | None = 64
    picture_size: tuple[int, int] = (1024, 768)
    picture_bytes: int = 323_000
    turns: int = 8
    conversations: int | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "shared_tokens", "shared_count", "new_tokens", "pictures", "turns"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("prompt_tokens", "shared_tokens", "new_tokens"):
            if getattr(self, name) > MOST_TOKENS:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at most {MOST_TOKENS}")
        width, height = self.picture_size
        if width * height > MOST_PIXELS or max(width, height) > 65_535:
            raise UsageError(f"a picture of {width}x{height}: at most {MOST_PIXELS} pixels, 65535 a side")
        for limited in (self.repeat, self.conversations):
            if limited is not None and limited < 1:
                raise UsageError(f"{limited} pictures or conversations: there must be at least 1")

    @property
    def has_pictures(self) -> bool:
        return self.kind in (Kind.DATA_PICTURE, Kind.HTTP_PICTURE)

    @property
    def words(self) -> int:
        """Tokens of text that are made for each request."""
        return self.new_tokens if self.kind is Kind.SHARED_PREFIX else self.prompt_tokens

    @property
    def repeats(self) -> int:
        """Requests until everything that comes again has come once."""
        if self.kind is Kind.SHARED_PREFIX:
            return self.shared_count
        return -(-(self.repeat or 0) // self.pictures) if self.has_pictures else 0

    def described(self) -> dict[str, Any]:
        """The numbers that matter for this kind."""
        said: dict[Kind, tuple[str, ...]] = {
            Kind.TEXT: ("prompt_tokens",),
            Kind.SHARED_PREFIX: ("shared_tokens", "shared_count", "new_tokens"),
            Kind.MULTI_TURN: ("prompt_tokens", "turns", "conversations"),
        }
        pictures = ("prompt_tokens", "pictures", "repeat", "picture_size", "picture_bytes")
        values = asdict(self)
        return {"kind": self.kind.value} | {name: values[name] for name in said.get(self.kind, pictures)}


NAMED: dict[str, tuple[Workload, str]] = {
    "32": (Workload(Kind.TEXT), "32 tokens, every prompt new"),
    "8k": (Workload(Kind.SHARED_PREFIX), "7,168 tokens that one of 16 groups shares, and 1,024 new ones"),
    "data64": (Workload(Kind.DATA_PICTURE), "a 431 kB data: picture, one of 64"),
    "datanew": (Workload(Kind.DATA_PICTURE, repeat=None), "a 431 kB data: picture, every one new"),
    "http64": (Workload(Kind.HTTP_PICTURE), "a picture by address, one of 64"),
    "httpnew": (Workload(Kind.HTTP_PICTURE, repeat=None), "a picture by address, every address new"),
    **{kind.value: (Workload(kind), "sized by the options") for kind in Kind},
}


def named(name: str, changes: dict[str, Any]) -> Workload:
    """The workload of that name, with some of its numbers changed.

    Raises:
        UsageError: no such name, or a number that cannot be.
    """
    if name not in NAMED:
        raise UsageError(f"profile {name!r}: choose from {', '.join(NAMED)}")
    return replace(NAMED[name][0], **changes)
