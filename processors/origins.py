"""Requests to the servers of media: addresses checked at every hop, answers checked before they are read."""

from __future__ import annotations

import contextlib
import re
import socket
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import aiohttp
import httpx
import yarl

from processors.config import MediaConfig
from processors.data_url import too_large
from processors.errors import MediaUnreachable, RequestError
from processors.network import Guard, Resolver, guarded_connector
from processors.url_names import MAX_URL_CHARS, host_names, matches_host

__all__ = ["OriginAnswer", "OriginClient", "check_status", "shown_url"]

#: One layer of these grows a thousandfold at most, within what one read brings; layers upon layers do not
#: end. None of them was asked for.
_PACKED = ("gzip", "deflate")
_ENCODINGS = ("", "identity", *_PACKED)
_REDIRECTS = (301, 302, 303, 307, 308)
#: Read at a time at most, and unpacked at a time.
_READ_BYTES = 1 << 20
#: An IPv4 address in any spelling that the system would take for one: 127.1, 2130706433, 0x7f.1.
_NUMERIC_HOST = re.compile(r"[0-9][0-9a-fx.]*", re.IGNORECASE)
_HEADERS = {"user-agent": "sightline", "accept": "image/*,*/*;q=0.5", "accept-encoding": "identity"}


class OriginAnswer:
    """An origin's answer, whose body is read once, as it comes."""

    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._response = response
        self._url = url

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def reason(self) -> str:
        return self._response.reason or ""

    @property
    def headers(self) -> Mapping[str, str]:
        """Their names in any case."""
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, unpacked.

        Raises:
            MediaUnreachable: it is not packed as it says.
            aiohttp.ClientError: it does not come whole.
        """
        unpack = _Unpacker() if _encoding_of(self.headers) in _PACKED else None
        async for chunk in self._response.content.iter_any():
            if unpack is None:
                yield chunk
                continue
            try:
                for piece in unpack.pieces(chunk):
                    yield piece
            except zlib.error:
                raise MediaUnreachable(f"{shown_url(self._url)} is not packed as it says") from None


class _Unpacker:
    """gzip, and deflate with a header or without one, in pieces of bounded size."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._is_first = True

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        if self._is_first:
            self._is_first = False
            yield self._first(packed)
        else:
            yield self._inner.decompress(packed, _READ_BYTES)
        while self._inner.unconsumed_tail:
            yield self._inner.decompress(self._inner.unconsumed_tail, _READ_BYTES)

    def _first(self, packed: bytes) -> bytes:
        try:
            return self._inner.decompress(packed, _READ_BYTES)
        except zlib.error:
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS)  # "deflate" as some servers write it
            return self._inner.decompress(packed, _READ_BYTES)


class OriginClient:
    """To be closed. Belongs to one event loop."""

    def __init__(self, media: MediaConfig, resolver: Resolver) -> None:
        self._media = media
        self._resolver = resolver
        self._guard = Guard(
            allow_private=media.allow_private_addresses, allowed_networks=media.allowed_networks
        )
        self._session: aiohttp.ClientSession | None = None

    def _opened(self) -> aiohttp.ClientSession:
        """Made at its first use: it needs a running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=guarded_connector(self._resolver, self._guard),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._media.fetch_timeout_s),
                headers=_HEADERS,
                # One client's cookies must not go out with another's request.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=_READ_BYTES,
            )
        return self._session

    @contextlib.asynccontextmanager
    async def open(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[OriginAnswer]:
        """The answer at the end of all redirects, its body unread.

        Raises:
            RequestError: 400 for an address that is not fetched from, at any hop.
            MediaUnreachable: 400 for too many hops, or a body packed in a way that is not unpacked here.
            aiohttp.ClientError: as aiohttp.
        """
        target = self.target(url)
        for _ in range(self._media.max_redirects + 1):
            ask = self._opened().get(_wire_url(target), headers=headers, allow_redirects=False)
            async with ask as response:
                location = response.headers.get("location")
                if response.status not in _REDIRECTS or location is None:
                    _check_encoding(response.headers, url)
                    yield OriginAnswer(response, url)
                    return
                target = self.target(location, target)
        limit = self._media.max_redirects
        raise MediaUnreachable(f"{shown_url(url)} redirects more than {limit} times (media.max_redirects)")

    def target(self, url: str, base: httpx.URL | None = None) -> httpx.URL:
        """The URL, checked as far as its text tells.

        Raises:
            RequestError: 400.
        """
        if len(url) > MAX_URL_CHARS:
            message = f"the image's URL has {len(url)} characters; the limit is {MAX_URL_CHARS}"
            raise RequestError(message, code="malformed_url")
        try:
            target = httpx.URL(url) if base is None else base.join(url)
            names = host_names(target)
        except (httpx.InvalidURL, ValueError):
            # The parser's own words may repeat a password.
            raise RequestError("the image's URL is malformed", code="malformed_url") from None
        if target.scheme == "http" and not self._media.allow_http:
            raise RequestError("http URLs are off here (media.allow_http); use https", code="http_off")
        if target.scheme not in ("http", "https") or not target.host:
            raise RequestError(f"{shown_url(str(target))} is not an http(s) URL", code="malformed_url")
        if target.port is not None and not 0 < target.port < 1 << 16:
            raise RequestError(f"{shown_url(str(target))} names no port", code="malformed_url")
        self._check_host(names)
        return target

    def _check_host(self, names: Sequence[str]) -> None:
        host = names[0][:100]
        if matches_host(names, self._media.denied_hosts):
            raise RequestError(f"{host} is not fetched from (media.denied_hosts)", code="host_refused")
        allowed = self._media.allowed_hosts
        if allowed and not matches_host(names, allowed):
            message = f"{host} is none of the hosts that are fetched from (media.allowed_hosts)"
            raise RequestError(message, code="host_refused")

    async def read(self, response: OriginAnswer) -> bytes:
        """The whole body.

        Raises:
            MediaTooLarge: 413.
        """
        limit = self._media.max_item_bytes
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
            raise too_large(int(declared), limit)
        data = bytearray()
        async for chunk in response.chunks():
            data += chunk
            if len(data) > limit:
                raise too_large(len(data), limit)
        return bytes(data)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


def check_status(response: OriginAnswer, url: str) -> None:
    """
    Raises:
        MediaUnreachable: anything but a success.
    """
    if 200 <= response.status < 300:
        return
    status = response.status if 400 <= response.status < 500 else 400
    message = f"{shown_url(url)} could not be fetched: its server answered {response.status}"
    raise MediaUnreachable(f"{message} {response.reason}".rstrip(), status=status)


def shown_url(url: str) -> str:
    """A URL as errors may show it: without user, query and fragment."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return "the image"
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii', 'replace')}{parsed.path}"[:200]


def _wire_url(target: httpx.URL) -> yarl.URL:
    """As it is asked for: the text that was checked, and an address in its usual spelling.

    Raises:
        RequestError: 400 where the two readers of URLs do not find the same host.
    """
    host = target.raw_host.decode("ascii")
    try:
        wire = yarl.URL(str(target.copy_with(fragment=None)), encoded=True)
        same = (wire.raw_host or "") == host
    except ValueError:
        same = False
    if not same:
        raise RequestError("the image's URL is malformed", code="malformed_url")
    if _NUMERIC_HOST.fullmatch(host):
        with contextlib.suppress(OSError):  # a name like any other
            usual = socket.inet_ntoa(socket.inet_aton(host))
            return wire if usual == host else wire.with_host(usual)
    return wire


def _encoding_of(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "").strip().lower()


def _check_encoding(headers: Mapping[str, str], url: str) -> None:
    encoding = _encoding_of(headers)
    if encoding not in _ENCODINGS:
        message = f"{shown_url(url)} came with content-encoding {encoding[:40]!r}"
        raise MediaUnreachable(f"{message}; served are none, gzip and deflate")
