"""From a log of OpenAI chat requests to a trace that keeps what caches see, and nothing that anybody wrote.

Texts and addresses become keyed hashes (blake2b with a secret that is thrown away), so that equal ones stay
equal and none can be guessed by hashing a dictionary. A text is cut into pieces of `PIECE_CHARACTERS`, each
named by all that came before it in the message, so that a shared beginning stays shared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulation.errors import TraceError
from simulation.traces import TracePart, TraceRequest

__all__ = ["PIECE_CHARACTERS", "Anonymizer", "estimated_tokens"]

#: Characters of a text that are named together: a shared beginning is kept to this grain.
PIECE_CHARACTERS = 256
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

        timestamp or created: seconds; at_ms: milliseconds. Without one the requests come a second apart.

        Raises:
            TraceError: a line is not such a request; names it, and quotes nothing of it.
        """
        begin: float | None = None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry = _entry(number, line)
            at_ms = _at_ms(number, entry)
            begin = at_ms if begin is None else begin
            yield self._request(number, entry, max(0.0, at_ms - begin))

    def name(self, *texts: str) -> str:
        digest = hashlib.blake2b(key=self.secret, digest_size=8)
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def _request(self, number: int, entry: Mapping[str, Any], at_ms: float) -> TraceRequest:
        request = entry.get("request", entry)
        messages = request.get("messages") if isinstance(request, dict) else None
        if not isinstance(messages, list) or not messages:
            raise TraceError(f"line {number}: `messages` is missing or empty")
        parts = tuple(part for message in messages for part in self._message(number, message))
        usage = _usage(entry)
        limit = usage or request.get("max_completion_tokens") or request.get("max_tokens")
        session = request.get("user")
        return TraceRequest(
            at_ms=round(at_ms, 3),
            parts=parts,
            output_tokens=max(1, limit if isinstance(limit, int) else self.default_output_tokens),
            session=self.name("session", session) if isinstance(session, str) else None,
        )

    def _message(self, number: int, message: Any) -> Iterator[TracePart]:
        if not isinstance(message, dict):
            raise TraceError(f"line {number}: a message is not an object")
        role, content = str(message.get("role", "")), message.get("content")
        yield TracePart(text=self.name("role", role), tokens=_TEMPLATE_TOKENS)
        for item in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
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
    except ValueError:
        raise TraceError(f"line {number}: not JSON") from None
    if not isinstance(entry, dict):
        raise TraceError(f"line {number}: an object a line is expected")
    return entry


def _at_ms(number: int, entry: Mapping[str, Any]) -> float:
    for name, factor in (("at_ms", 1.0), ("timestamp", 1e3), ("created", 1e3)):
        value = entry.get(name)
        if isinstance(value, int | float):
            return float(value) * factor
    return number * 1e3


def _usage(entry: Mapping[str, Any]) -> int | None:
    response = entry.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None
