"""What addresses and client uuids were found to name, remembered for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from processors.bounded import BoundedMap
from processors.identity import time_bucket
from sightline_types import ImageSize, MediaId

__all__ = ["AliasTable", "KnownFile"]


@dataclass(frozen=True, slots=True)
class KnownFile:
    """What a name stood for. file: the identity of the encoded file; None where it does not matter."""

    media_id: MediaId
    file: MediaId | None
    size: ImageSize | None


class AliasTable:
    """Bounded by number; an entry lasts for the time bucket in which it was learned.

    clock: seconds since the epoch.
    """

    def __init__(self, entries: int, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._known: BoundedMap[tuple[str, ...], KnownFile] = BoundedMap(entries, clock)

    def find(self, name: tuple[str, ...]) -> KnownFile | None:
        return self._known.get(name)

    def learn(self, name: tuple[str, ...], known: KnownFile) -> None:
        now = self._clock()
        ends = (time_bucket(now, self._ttl_s) + 1) * self._ttl_s
        self._known.put(name, known, ttl_s=ends - now)
