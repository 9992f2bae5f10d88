"""Fetching media: the only code that opens a connection for a request's media."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from processors.config import MediaConfig
from processors.data_url import parse_data_url, too_large
from processors.errors import MediaUnreachable, RequestError
from processors.identity import time_bucket
from processors.network import GuardedBackend, GuardedTransport, Resolver, resolve, silence_urls
from processors.probe import ProbeError, probe_image
from sightline_types import ImageSize

__all__ = ["Fetcher"]

_SIZES_KEPT = 4096
#: One layer of these grows a thousandfold at most, within what one read brings; layers upon layers do not
#: end. None of them was asked for.
_ENCODINGS = ("", "identity", "gzip", "deflate")
_HEADERS = {"user-agent": "sightline", "accept": "image/*,*/*;q=0.5", "accept-encoding": "identity"}


class Fetcher:
    """One per process; to be closed. Belongs to one event loop.

    clock: seconds since the epoch. resolver: from host to addresses.
    """

    def __init__(
        self, media: MediaConfig, *, clock: Callable[[], float] = time.time, resolver: Resolver = resolve
    ) -> None:
        silence_urls()
        self._media = media
        self._clock = clock
        backend = GuardedBackend(allow_private=media.allow_private_addresses, resolver=resolver)
        self._client = httpx.AsyncClient(
            transport=GuardedTransport(backend),
            timeout=media.fetch_timeout_s,
            headers=_HEADERS,
            # One client's cookies must not go out with another's request.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
        )
        self._sizes: OrderedDict[tuple[str, int], ImageSize] = OrderedDict()

    async def fetch(self, url: str) -> bytes:
        """The whole file behind an http(s) URL.

        Raises:
            MediaUnreachable: the origin's own 4xx; 408 on the time limit; 400 for whatever else failed.
            MediaTooLarge: 413.
            RequestError: 400 for a URL or an address that is not fetched from.
        """
        try:
            async with asyncio.timeout(self._media.fetch_timeout_s), self._open(url, {}) as response:
                _check_status(response, url)
                return await self._read(response)
        except (TimeoutError, httpx.TimeoutException):
            message = (
                f"{_shown(url)} took longer than {self._media.fetch_timeout_s:g} s (media.fetch_timeout_s)"
            )
            raise MediaUnreachable(message, status=408) from None
        except httpx.HTTPError as error:
            message = f"{_shown(url)} could not be fetched ({type(error).__name__})"
            raise MediaUnreachable(message) from error

    async def probe_size(self, url: str) -> ImageSize | None:
        """A picture's size from one ranged request; None where the origin does not tell it in time.

        Raises:
            RequestError: 400 for a URL or an address that is not fetched from.
        """
        key = (url, time_bucket(self._clock(), self._media.url_identity_ttl_s))
        if key in self._sizes:
            self._sizes.move_to_end(key)
            return self._sizes[key]
        try:
            async with asyncio.timeout(self._media.probe_timeout_ms / 1000):
                size = probe_image(await self._head(url))
        except (TimeoutError, httpx.HTTPError, MediaUnreachable, ProbeError):
            return None
        self._sizes[key] = size
        if len(self._sizes) > _SIZES_KEPT:
            self._sizes.popitem(last=False)
        return size

    def parse_data_url(self, url: str) -> bytes:
        """The bytes in a data: URL.

        Raises:
            RequestError: as `data_url.parse_data_url`.
        """
        return parse_data_url(url, max_bytes=self._media.max_item_bytes)

    async def aclose(self) -> None:
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _open(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        target = self._target(url)
        for _ in range(self._media.max_redirects + 1):
            async with self._client.stream("GET", target, headers=dict(headers)) as response:
                if not response.has_redirect_location:
                    _check_encoding(response, url)
                    yield response
                    return
                target = self._target(response.headers["location"], response.url)
        limit = self._media.max_redirects
        raise MediaUnreachable(f"{_shown(url)} redirects more than {limit} times (media.max_redirects)")

    def _target(self, url: str, base: httpx.URL | None = None) -> httpx.URL:
        try:
            target = httpx.URL(url) if base is None else base.join(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise RequestError(f"the image's URL is malformed: {error}", code="malformed_url") from None
        if target.scheme == "http" and not self._media.allow_http:
            raise RequestError("http URLs are off here (media.allow_http); use https", code="http_off")
        if target.scheme not in ("http", "https") or not target.host:
            raise RequestError(f"{_shown(str(target))} is not an http(s) URL", code="malformed_url")
        return target

    async def _read(self, response: httpx.Response) -> bytes:
        limit = self._media.max_item_bytes
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(int(declared), limit)
        data = bytearray()
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > limit:
                raise too_large(len(data), limit)
        return bytes(data)

    async def _head(self, url: str) -> bytes:
        """The first bytes; an origin that sends everything is left when they are there."""
        limit = self._media.probe_bytes
        async with self._open(url, {"range": f"bytes=0-{limit - 1}"}) as response:
            _check_status(response, url)
            if response.status_code == 206 and not _starts_at_zero(response):
                raise MediaUnreachable(f"{_shown(url)} answered with another range")
            head = bytearray()
            async for chunk in response.aiter_bytes():
                head += chunk
                if len(head) >= limit:
                    break
            return bytes(head[:limit])


def _check_status(response: httpx.Response, url: str) -> None:
    """
    Raises:
        MediaUnreachable: anything but a success.
    """
    if response.is_success:
        return
    status = response.status_code if response.is_client_error else 400
    message = f"{_shown(url)} could not be fetched: its server answered {response.status_code}"
    raise MediaUnreachable(f"{message} {response.reason_phrase}".rstrip(), status=status)


def _check_encoding(response: httpx.Response, url: str) -> None:
    """
    Raises:
        MediaUnreachable: the file is packed in a way that is not unpacked here.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        message = (
            f"{_shown(url)} came with content-encoding {encoding[:40]!r}; served are none, gzip and deflate"
        )
        raise MediaUnreachable(message)


def _starts_at_zero(response: httpx.Response) -> bool:
    return str(response.headers.get("content-range", "bytes 0-")).replace("=", " ").startswith("bytes 0-")


def _shown(url: str) -> str:
    """A URL as errors may show it: without user, query and fragment."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return "the image"
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii', 'replace')}{parsed.path}"[:200]
