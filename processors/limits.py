"""How much may be under way at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["KeyedLimit"]


class KeyedLimit:
    """At most so many at a time in all, and per key. Belongs to one event loop."""

    def __init__(self, total: int, per_key: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_key = per_key
        self._keys: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Waits for a place. The key's own comes first: who waits for it takes no place from others."""
        semaphore, users = self._keys.get(key, (asyncio.Semaphore(self._per_key), 0))
        self._keys[key] = (semaphore, users + 1)
        try:
            async with semaphore, self._total:
                yield
        finally:
            semaphore, users = self._keys[key]
            if users > 1:
                self._keys[key] = (semaphore, users - 1)
            else:
                del self._keys[key]

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._keys)
