"""Requests to the servers of media: addresses checked at every hop, answers checked before they are read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from processors.config import MediaConfig
from processors.data_url import too_large
from processors.errors import MediaUnreachable, RequestError
from processors.network import GuardedBackend, GuardedTransport, Resolver
from processors.url_names import matches_host

__all__ = ["MAX_URL_CHARS", "OriginClient", "check_status", "shown_url"]

MAX_URL_CHARS = 8192
#: One layer of these grows a thousandfold at most, within what one read brings; layers upon layers do not
#: end. None of them was asked for.
_ENCODINGS = ("", "identity", "gzip", "deflate")
_HEADERS = {"user-agent": "sightline", "accept": "image/*,*/*;q=0.5", "accept-encoding": "identity"}


class OriginClient:
    """To be closed. Belongs to one event loop."""

    def __init__(self, media: MediaConfig, resolver: Resolver) -> None:
        self._media = media
        backend = GuardedBackend(
            resolver=resolver,
            allow_private=media.allow_private_addresses,
            allowed_networks=media.allowed_networks,
        )
        self._client = httpx.AsyncClient(
            transport=GuardedTransport(backend),
            timeout=media.fetch_timeout_s,
            headers=_HEADERS,
            # One client's cookies must not go out with another's request.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
        )

    @contextlib.asynccontextmanager
    async def open(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """The answer at the end of all redirects, its body unread.

        Raises:
            RequestError: 400 for an address that is not fetched from, at any hop.
            MediaUnreachable: 400 for too many hops, or a body packed in a way that is not unpacked here.
            httpx.HTTPError: as httpx.
        """
        target = self.target(url)
        for _ in range(self._media.max_redirects + 1):
            async with self._client.stream("GET", target, headers=dict(headers)) as response:
                if not response.has_redirect_location:
                    _check_encoding(response, url)
                    yield response
                    return
                target = self.target(response.headers["location"], response.url)
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
        except (httpx.InvalidURL, ValueError):
            # The parser's own words may repeat a password.
            raise RequestError("the image's URL is malformed", code="malformed_url") from None
        if target.scheme == "http" and not self._media.allow_http:
            raise RequestError("http URLs are off here (media.allow_http); use https", code="http_off")
        if target.scheme not in ("http", "https") or not target.host:
            raise RequestError(f"{shown_url(str(target))} is not an http(s) URL", code="malformed_url")
        self._check_host(target.host)
        return target

    def _check_host(self, host: str) -> None:
        if matches_host(host, self._media.denied_hosts):
            raise RequestError(f"{host} is not fetched from (media.denied_hosts)", code="host_refused")
        allowed = self._media.allowed_hosts
        if allowed and not matches_host(host, allowed):
            message = f"{host} is none of the hosts that are fetched from (media.allowed_hosts)"
            raise RequestError(message, code="host_refused")

    async def read(self, response: httpx.Response) -> bytes:
        """The whole body.

        Raises:
            MediaTooLarge: 413.
        """
        limit = self._media.max_item_bytes
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
            raise too_large(int(declared), limit)
        data = bytearray()
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > limit:
                raise too_large(len(data), limit)
        return bytes(data)

    async def aclose(self) -> None:
        await self._client.aclose()


def check_status(response: httpx.Response, url: str) -> None:
    """
    Raises:
        MediaUnreachable: anything but a success.
    """
    if response.is_success:
        return
    status = response.status_code if response.is_client_error else 400
    message = f"{shown_url(url)} could not be fetched: its server answered {response.status_code}"
    raise MediaUnreachable(f"{message} {response.reason_phrase}".rstrip(), status=status)


def shown_url(url: str) -> str:
    """A URL as errors may show it: without user, query and fragment."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return "the image"
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii', 'replace')}{parsed.path}"[:200]


def _check_encoding(response: httpx.Response, url: str) -> None:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        message = f"{shown_url(url)} came with content-encoding {encoding[:40]!r}"
        raise MediaUnreachable(f"{message}; served are none, gzip and deflate")
