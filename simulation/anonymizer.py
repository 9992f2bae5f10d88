"""From a log of OpenAI chat requests to a trace that keeps what caches see, and nothing that anybody wrote.

Texts and addresses become keyed hashes (blake2b with a secret that is thrown away), so that equal ones stay
equal and none can be guessed by hashing a dictionary. A text is cut into pieces of `PIECE_CHARACTERS`, each
named by all that came before it in the message, so that a shared beginning stays shared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from simulation.errors import TraceError
from simulation.traces import LONGEST_MS, TracePart, TraceRequest

__all__ = ["PIECE_CHARACTERS", "Anonymizer", "estimated_tokens"]

#: Characters of a text that are named together: a shared beginning is kept to this grain.
PIECE_CHARACTERS = 256
#: Since 1970, in milliseconds: beyond any clock, so that a time in another unit is noticed.
_LATEST_MS = 1e14
#: Tokens that a chat template puts around a message, about.
_TEMPLATE_TOKENS = 5


def estimated_tokens(text: str) -> int:
    """About: four bytes of UTF-8 a token, as English has with current vocabularies."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


@dataclass(frozen=True, slots=True)
class Anonymizer:
    """secret: at least 16 random bytes, never stored.

    count_tokens: of a text. size_of: (width, height) of a picture by its address, where that tells;
    other_size: taken where it does not. default_output_tokens: where a request says nothing of its answer.
    """

    secret: bytes
    count_tokens: Callable[[str], int] = estimated_tokens
    size_of: Callable[[str], tuple[int, int] | None] = lambda url: None
    other_size: tuple[int, int] = (1280, 720)
    default_output_tokens: int = 256

    def convert(self, lines: Iterable[str]) -> Iterator[TraceRequest]:
        """A log's lines, each the request itself or {"request": ..., "response": ..., "timestamp": ...}.

        timestamp or created: seconds; at_ms: milliseconds; in any order, of all lines or of none. Without
        them the requests come a second apart. Nothing is yielded before the last line is read.

        Raises:
            TraceError: a line is not such a request; names it, and quotes nothing of it.
        """
        sent: list[tuple[int, float | None, TraceRequest]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry = _entry(number, line)
            try:
                sent.append((number, _at_ms(number, entry), self._request(number, entry)))
            except ValidationError as error:
                raise TraceError(f"line {number}: {_wrong_field(error)}") from None
        times = _times_ms(sent)
        begin = min(times, default=0.0)
        for at_ms, (_, _, request) in zip(times, sent, strict=True):
            yield request.model_copy(update={"at_ms": round(at_ms - begin, 3)})

    def name(self, *texts: str) -> str:
        digest = hashlib.blake2b(key=self.secret, digest_size=8)
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def _request(self, number: int, entry: Mapping[str, Any]) -> TraceRequest:
        """As if it were the first."""
        request = entry.get("request", entry)
        messages = request.get("messages") if isinstance(request, dict) else None
        if not isinstance(messages, list) or not messages:
            raise TraceError(f"line {number}: `messages` is missing or empty")
        parts = tuple(part for message in messages for part in self._message(number, message))
        usage = _usage(entry)
        limit = usage or request.get("max_completion_tokens") or request.get("max_tokens")
        session = request.get("user")
        return TraceRequest(
            at_ms=0.0,
            parts=parts,
            output_tokens=max(1, limit if isinstance(limit, int) else self.default_output_tokens),
            session=self.name("session", session) if isinstance(session, str) else None,
        )

    def _message(self, number: int, message: Any) -> Iterator[TracePart]:
        if not isinstance(message, dict):
            raise TraceError(f"line {number}: a message is not an object")
        role, content = str(message.get("role", "")), message.get("content")
        yield TracePart(text=self.name("role", role), tokens=_TEMPLATE_TOKENS)
        items = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        if not isinstance(items, list):
            raise TraceError(f"line {number}: the content of a message is text or a list of parts")
        for item in items:
            yield from self._item(number, item)

    def _item(self, number: int, item: Any) -> Iterator[TracePart]:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "text" and isinstance(item.get("text"), str):
            yield from self._text(item["text"])
        elif kind == "image_url":
            given = item.get("image_url")
            url = given.get("url") if isinstance(given, dict) else given
            if not isinstance(url, str):
                raise TraceError(f"line {number}: an image_url without a url")
            width, height = self.size_of(url) or self.other_size
            yield TracePart(picture=self.name("picture", url), size=f"{width}x{height}")
        else:
            raise TraceError(f"line {number}: parts of type text and image_url are understood, not this one")

    def _text(self, text: str) -> Iterator[TracePart]:
        for begin in range(0, len(text), PIECE_CHARACTERS):
            end = begin + PIECE_CHARACTERS
            tokens = self.count_tokens(text[begin:end])
            yield TracePart(text=self.name("text", text[:end]), tokens=tokens)


def _entry(number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(f"line {number}: not JSON, or nested too deeply") from None
    if not isinstance(entry, dict):
        raise TraceError(f"line {number}: an object a line is expected")
    return entry


def _at_ms(number: int, entry: Mapping[str, Any]) -> float | None:
    """None where the line has no time."""
    for name, factor in (("at_ms", 1.0), ("timestamp", 1e3), ("created", 1e3)):
        value = entry.get(name)
        if value is None:
            continue
        limit = _LATEST_MS / factor
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= limit:
            raise TraceError(
                f"line {number}: `{name}` is a number, at most {limit:g} (`timestamp` in seconds, `at_ms` in "
                "milliseconds)"
            )
        return float(value) * factor
    return None


def _times_ms(sent: Sequence[tuple[int, float | None, TraceRequest]]) -> list[float]:
    """When the requests were sent; a second apart where no line says it."""
    times = [at_ms for _, at_ms, _ in sent if at_ms is not None]
    if not times:
        return [place * 1e3 for place in range(len(sent))]
    if len(times) < len(sent):
        lacks = next(number for number, at_ms, _ in sent if at_ms is None)
        raise TraceError(f"line {lacks}: no `timestamp`, where other lines have one")
    if max(times) - min(times) > LONGEST_MS:
        raise TraceError(f"its times are more than {LONGEST_MS:g} ms apart: `timestamp` is in seconds")
    return times


def _wrong_field(error: ValidationError) -> str:
    """Which field cannot be, without its value."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _usage(entry: Mapping[str, Any]) -> int | None:
    response = entry.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None
