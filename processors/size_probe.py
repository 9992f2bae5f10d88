"""A picture's size from as few bytes of its file as its header takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from processors.errors import MediaUnreachable
from processors.header_bytes import NeedMoreBytes
from processors.origins import OriginAnswer, check_status, shown_url
from processors.probe import probe_image
from sightline_types import ImageSize

__all__ = ["probe_remote", "probe_steps"]

_FIRST, _SECOND, _FACTOR = 4096, 65536, 4
_CONTENT_RANGE = re.compile(r"\s*bytes[ =](\d{1,18})-(\d{1,18})/(?:(\d{1,18})|\*)\s*$")


class _Open(Protocol):
    def __call__(self, url: str, headers: dict[str, str], /) -> AbstractAsyncContextManager[OriginAnswer]: ...


def probe_steps(limit: int) -> Iterator[int]:
    """How many bytes are looked at, time after time: 4 KiB, 64 KiB, then four times as many, to `limit`."""
    step = _FIRST
    while step < limit:
        yield step
        step = _SECOND if step == _FIRST else step * _FACTOR
    yield limit


async def probe_remote(open_url: _Open, url: str, limit: int) -> ImageSize:
    """Ask an origin for the beginning of a file, and for more while the header goes on.

    An origin that does not know ranges sends everything: its answer is read as far as needed, and left.

    Raises:
        ProbeError: the bytes do not tell the size.
        MediaUnreachable, aiohttp.ClientError: the origin does not give them.
    """
    head = bytearray()
    for step in probe_steps(limit):
        headers = {"range": f"bytes={len(head)}-{step - 1}"}
        async with open_url(url, headers) as response:
            check_status(response, url)
            if response.status != 206:
                return await _probe_stream(response, limit)
            is_whole = await _read_range(response, head, step, url)
        try:
            return probe_image(bytes(head))
        except NeedMoreBytes:
            if is_whole:
                raise
    raise NeedMoreBytes(f"the first {limit} bytes do not tell the size (media.probe_bytes)")


async def _probe_stream(response: OriginAnswer, limit: int) -> ImageSize:
    head = bytearray()
    steps = probe_steps(limit)
    step = next(steps)
    async for chunk in response.chunks():
        head += chunk
        while len(head) >= step:
            try:
                return probe_image(bytes(head[:step]))
            except NeedMoreBytes:
                if step >= limit:
                    raise
                step = next(steps)
    return probe_image(bytes(head))


async def _read_range(response: OriginAnswer, head: bytearray, stop: int, url: str) -> bool:
    """Add the answer to `head`; returns whether the file ends there.

    Raises:
        MediaUnreachable: the answer is another piece, or a packed one.
    """
    found = _CONTENT_RANGE.match(response.headers.get("content-range", ""))
    is_packed = response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")
    if found is None or int(found[1]) != len(head) or (is_packed and head):
        raise MediaUnreachable(f"{shown_url(url)} answered with another range")
    async for chunk in response.chunks():
        head += chunk
        if len(head) >= stop:
            del head[stop:]  # whatever it says it sent
            break
    total = None if found[3] is None else int(found[3])
    return len(head) < stop or (total is not None and total <= len(head))
