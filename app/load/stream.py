"""Reads one chat completion, streamed or whole, while it arrives. Pure: the time of each piece is given."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

__all__ = ["Body", "Usage", "Whole", "Words", "error_kind"]

#: Bytes of an error's body that are kept to name it.
MAX_ERROR_BYTES = 65536


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's usage, as far as it is read here; in tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details is not None else None


class _Said(msgspec.Struct):
    """reasoning: what a model thinks before it answers (vLLM 0.32; elsewhere `reasoning_content`)."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


class _ErrorBody(msgspec.Struct):
    message: str | None = None
    code: str | int | None = None
    type: str | None = None


class _Refused(msgspec.Struct):
    error: _ErrorBody | str | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_refused = msgspec.json.Decoder(_Refused)


class Words:
    """Server-sent events of a streamed answer.

    Attributes:
        times: when each piece of content came, in the caller's seconds; pieces of one read share a time.
        text: what was said, if `keeps_text`.
        usage: the last usage seen.
        failed: how the stream says that it went wrong; "" while it did not.
        is_complete: whether it ended as the API says (`[DONE]`).
    """

    def __init__(self, *, keeps_text: bool = False) -> None:
        self.times = array("d")
        self.usage: Usage | None = None
        self.failed = ""
        self.is_complete = False
        self._pieces: list[str] | None = [] if keeps_text else None
        self._rest = b""

    @property
    def text(self) -> str:
        return "".join(self._pieces or ())

    def feed(self, data: bytes, now: float) -> None:
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.is_complete = True
            return
        if not data:
            return  # says nothing, and keeps the connection open
        try:
            chunk = _chunk.decode(data)
        except msgspec.DecodeError:
            self.failed = self.failed or "not a completion chunk"
            return
        if bytes(chunk.error) not in (b"", b"null"):
            self.failed = self.failed or "error in the stream"
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices or ():
            said = _text(choice.delta)
            if said:
                self.times.append(now)
                if self._pieces is not None:
                    self._pieces.append(said)

    def close(self) -> None:
        """The body has ended, perhaps without a last line's end."""
        if self._rest.strip() == b"data: [DONE]":
            self.is_complete = True
        if not self.is_complete:
            self.failed = self.failed or "ended without [DONE]"


class Body:
    """A body that is kept as it is; the same face as `Words`."""

    def __init__(self) -> None:
        self.times = array("d")
        self.usage: Usage | None = None
        self.failed = ""
        self.text = ""
        self.body = bytearray()

    def feed(self, data: bytes, now: float) -> None:
        self.body += data

    def close(self) -> None:
        """The body has ended."""


class Whole(Body):
    """A completion that comes in one piece."""

    def close(self) -> None:
        try:
            answer = _chunk.decode(self.body)
        except msgspec.DecodeError:
            self.failed = "not a completion"
            return
        self.usage = answer.usage
        self.text = "".join(_text(choice.message) for choice in answer.choices or ())
        if not answer.choices:
            self.failed = "no choices in the answer"


def error_kind(status: int, body: bytes) -> str:
    """What an error answer is counted as: its status, and the code or type of OpenAI's error object."""
    try:
        error = _refused.decode(body[:MAX_ERROR_BYTES]).error
    except msgspec.DecodeError:
        return str(status)
    name: Any = (error.code or error.type) if isinstance(error, _ErrorBody) else None
    return f"{status} {name}" if name and str(name) != str(status) else str(status)


def _text(said: _Said | None) -> str:
    return (said.content or said.reasoning or said.reasoning_content or "") if said is not None else ""
