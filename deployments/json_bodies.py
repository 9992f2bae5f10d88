"""JSON in and out: a request's body within its limit, and any of our values as an object."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from processors import RequestError

__all__ = ["plain", "read_json"]


async def read_json(request: Request, limit: int) -> Any:
    """The request's body.

    Raises:
        RequestError: 413 when it is longer than `limit` bytes, 400 when it is not JSON.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    chunks: list[bytes] = []
    length = 0
    try:
        async for chunk in request.stream():
            chunks.append(chunk)
            length += len(chunk)
            if length > limit:
                raise _too_large(length, limit)
    except ClientDisconnect:
        raise RequestError("the client left before its request was whole", code="client_left") from None
    try:
        return msgspec.json.decode(b"".join(chunks))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the request body is not valid JSON: {error}", code="invalid_json") from None


def _too_large(given: int, limit: int) -> RequestError:
    message = (
        f"the request body has {given} bytes or more; the limit is {limit} (body_limit_bytes). "
        "Send pictures by URL, or smaller ones."
    )
    return RequestError(message, status=413, code="request_too_large")


def plain(value: Any) -> Any:
    """A value as JSON says it: ids as text, enums by value, dataclasses with their properties as objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if type(value).__str__ is not object.__str__ and len(dataclasses.fields(value)) <= 2:
            return str(value)  # WorkerId, MediaId, ImageSize
        names = [f.name for f in dataclasses.fields(value)] + _properties(type(value))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(entry) for name, entry in value._asdict().items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain(entry) for entry in value]
    return value


def _properties(kind: type) -> list[str]:
    return [
        name
        for name, member in vars(kind).items()
        if isinstance(member, property) and name not in ("chosen", "ranked_workers", "spec")
    ]
