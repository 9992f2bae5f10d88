"""Where blocks go when the GPU evicts them: least recently used keys leave first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from simulation.events import CPU, Event, Removed, Stored

__all__ = ["LowerTier"]


class LowerTier:
    """At most `capacity` keys (>= 1), each once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, keys: Sequence[int]) -> list[Event]:
        """Take in evicted blocks; those that it already holds become the most recent."""
        added: dict[int, None] = {}
        removed: list[int] = []
        for key in keys:
            if key in self._held:
                self._held.move_to_end(key)
                continue
            if len(self._held) >= self._capacity:
                self._drop_oldest(added, removed)
            self._held[key] = added[key] = None
        events: list[Event] = [Removed(tuple(removed), CPU)] if removed else []
        if added:
            events.append(Stored("", 0, np.array(list(added), dtype=np.uint64), None, CPU))
        return events

    def _drop_oldest(self, added: dict[int, None], removed: list[int]) -> None:
        key, _ = self._held.popitem(last=False)
        if key in added:
            del added[key]
        else:
            removed.append(key)

    def leading(self, keys: Sequence[int]) -> int:
        """How many of `keys` it holds from the first one on."""
        for count, key in enumerate(keys):
            if key not in self._held:
                return count
        return len(keys)

    def touch(self, keys: Sequence[int]) -> None:
        """They were read: the most recent from now on. All of them are held."""
        for key in keys:
            self._held.move_to_end(key)

    def clear(self) -> None:
        self._held.clear()
