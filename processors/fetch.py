"""Fetching media: the one way in for the bytes of a request's media."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from processors.bounded import BoundedMap
from processors.config import MediaConfig
from processors.data_url import parse_data_url
from processors.errors import MediaTooLarge, MediaUnreachable, RequestError
from processors.freshness import freshness_s
from processors.identity import time_bucket
from processors.limits import KeyedLimit
from processors.local_files import read_file_url
from processors.network import Resolver, SystemResolver
from processors.origins import OriginClient, check_status, shown_url
from processors.probe import ProbeError, probe_image
from processors.single_flight import SingleFlight
from processors.size_probe import probe_remote
from sightline_types import ImageSize

__all__ = ["FetchCounts", "Fetcher"]

_V = TypeVar("_V")

_SIZES_KEPT = 4096
#: Failures are small; so many of their URLs' characters are kept.
_FAILURE_BUDGET = 1 << 20


@dataclass(slots=True)
class FetchCounts:
    """What the fetcher did since it was made.

    downloads: whole files asked of origins. shared: requests for a file whose download was under way.
    cached, failed_before: answered from memory. probes: origins asked for a size.
    late_probes: sizes that came after the request had stopped to wait.
    """

    downloads: int = 0
    shared: int = 0
    cached: int = 0
    failed_before: int = 0
    probes: int = 0
    late_probes: int = 0


class Fetcher:
    """One per process; to be closed. Belongs to one event loop.

    clock: seconds since the epoch. resolver: from host to addresses; None is the system's.
    """

    def __init__(
        self, media: MediaConfig, *, clock: Callable[[], float] = time.time, resolver: Resolver | None = None
    ) -> None:
        self._media = media
        self._clock = clock
        self._names = SystemResolver(media.resolver_threads)
        self._origins = OriginClient(media, resolver or self._names)
        self._downloads: SingleFlight[str, bytes] = SingleFlight()
        self._probes: SingleFlight[tuple[str, int], ImageSize | None] = SingleFlight(goes_on=True)
        self._fetch_limit = KeyedLimit(media.max_concurrent_fetches, media.max_fetches_per_host)
        self._probe_limit = KeyedLimit(media.max_concurrent_fetches, media.max_fetches_per_host)
        self._files: BoundedMap[str, bytes] = BoundedMap(media.cache_bytes, clock)
        self._failures: BoundedMap[str, RequestError] = BoundedMap(_FAILURE_BUDGET, clock)
        self._sizes: BoundedMap[tuple[str, int], ImageSize] = BoundedMap(_SIZES_KEPT, clock)
        self.counts = FetchCounts()

    async def fetch(self, url: str) -> bytes:
        """The whole file behind an http(s), data: or file: URL.

        Raises:
            MediaUnreachable: the origin's own 4xx; 408 on the time limit; 400 for whatever else failed.
            MediaTooLarge: 413.
            RequestError: 400 for a URL or an address that is not fetched from.
        """
        scheme = url[:5].lower()
        if scheme == "data:":
            return await asyncio.to_thread(self.parse_data_url, url)
        if scheme == "file:":
            read, limit = read_file_url, self._media.max_item_bytes
            return await asyncio.to_thread(read, url, self._media.file_roots, max_bytes=limit)
        self._raise_known_failure(url)
        if (data := self._files.get(url)) is not None:
            self.counts.cached += 1
            return data
        self.counts.shared += url in self._downloads
        return await self._shared(self._downloads, url, lambda: self._download(url))

    async def probe_size(self, url: str, wait_ms: float | None = None) -> ImageSize | None:
        """A picture's size from a few bytes; None where the origin does not tell it in time.

        wait_ms: how long to wait for it; None: `media.probe_budget_ms`, 0: only what is known already.
            What comes later is known the next time.

        Raises:
            RequestError: 400 for a URL or an address that is not fetched from.
        """
        wait_ms = self._media.probe_budget_ms if wait_ms is None else wait_ms
        key = self._size_key(url)
        if (known := self._sizes.get(key)) is not None:
            return known
        host = self._origins.target(url).host
        if wait_ms <= 0 or self._failures.get(url) is not None:
            return None
        try:
            return await self._shared(self._probes, key, lambda: self._probe(url, host), wait_ms / 1000)
        except TimeoutError:
            self.counts.late_probes += 1
            return None

    def note_size(self, url: str, size: ImageSize) -> None:
        """Remember a size that was learned from the file itself."""
        self._sizes.put(self._size_key(url), size, ttl_s=self._media.url_identity_ttl_s)

    def forget_size(self, url: str) -> None:
        """What was believed of a URL has turned out wrong."""
        self._sizes.drop(self._size_key(url))

    def parse_data_url(self, url: str) -> bytes:
        """The bytes in a data: URL.

        Raises:
            RequestError: as `data_url.parse_data_url`.
        """
        return parse_data_url(url, max_bytes=self._media.max_item_bytes)

    async def aclose(self) -> None:
        await self._downloads.aclose()
        await self._probes.aclose()
        await self._origins.aclose()
        await self._names.aclose()

    def _size_key(self, url: str) -> tuple[str, int]:
        return url, time_bucket(self._clock(), self._media.url_identity_ttl_s)

    async def _shared(
        self,
        flights: SingleFlight[Any, _V],
        key: Any,
        work: Callable[[], Coroutine[Any, Any, _V]],
        timeout_s: float | None = None,
    ) -> _V:
        try:
            return await flights.run(key, work, timeout_s)
        except RequestError as error:
            raise copy.copy(error) from None  # each request adds its own `param`

    def _raise_known_failure(self, url: str) -> None:
        failure = self._failures.get(url)
        if failure is not None:
            self.counts.failed_before += 1
            raise copy.copy(failure)

    async def _download(self, url: str) -> bytes:
        self.counts.downloads += 1
        try:
            data, ttl_s = await self._read(url)
        except (MediaUnreachable, MediaTooLarge) as error:
            self._failures.put(url, copy.copy(error), ttl_s=self._media.failure_ttl_s, weight=len(url))
            raise
        self._files.put(url, data, ttl_s=min(ttl_s, self._media.cache_ttl_s), weight=len(data) + len(url))
        return data

    async def _read(self, url: str) -> tuple[bytes, float]:
        """The file, and for how many seconds its origin lets it be kept."""
        limit_s = self._media.fetch_timeout_s
        host = self._origins.target(url).host
        try:
            async with (
                asyncio.timeout(limit_s),
                self._fetch_limit.hold(host),
                self._origins.open(url, {}) as response,
            ):
                check_status(response, url)
                if response.status == 206:
                    # Nobody asked for a part, and a part must not be kept for the file.
                    raise MediaUnreachable(f"{shown_url(url)} sent a part of the file, unasked (206)")
                return await self._origins.read(response), freshness_s(response.headers)
        except TimeoutError:
            message = f"{shown_url(url)} took longer than {limit_s:g} s (media.fetch_timeout_s)"
            raise MediaUnreachable(message, status=408) from None
        except (aiohttp.ClientError, OSError) as error:
            message = f"{shown_url(url)} could not be fetched ({type(error).__name__})"
            raise MediaUnreachable(message) from error

    async def _probe(self, url: str, host: str) -> ImageSize | None:
        if (data := self._files.get(url)) is not None:
            size = _size_of(data)
        else:
            self.counts.probes += 1
            size = await self._ask_size(url, host)
        if size is not None:
            self.note_size(url, size)
        return size

    async def _ask_size(self, url: str, host: str) -> ImageSize | None:
        try:
            async with (
                asyncio.timeout(self._media.probe_timeout_ms / 1000),
                self._probe_limit.hold(host),
            ):
                return await probe_remote(self._origins.open, url, self._media.probe_bytes)
        except (TimeoutError, aiohttp.ClientError, OSError, MediaUnreachable, ProbeError):
            return None


def _size_of(data: bytes) -> ImageSize | None:
    try:
        return probe_image(data)
    except ProbeError:
        return None
