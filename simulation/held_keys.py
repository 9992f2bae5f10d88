"""What a simulated engine holds, as its relay would tell it: a key's first store, and its last removal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sightline_types import Tier, TierDelta
from simulation.events import GPU, Cleared, Event, Stored

__all__ = ["HeldKeys"]


@dataclass(slots=True)
class _Medium:
    """Stores by key, and the change since the last drain. Engines store a key again for each copy."""

    counts: dict[int, int] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def take(self, keys: Iterable[int]) -> None:
        counts, stored, removed = self.counts, self.stored, self.removed
        for key in keys:
            if key in counts:
                counts[key] += 1
                continue
            counts[key] = 1
            if key in removed:
                removed.remove(key)
            else:
                stored.add(key)

    def release(self, keys: Iterable[int]) -> None:
        counts, stored, removed = self.counts, self.stored, self.removed
        for key in keys:
            left = counts[key] - 1
            if left:
                counts[key] = left
                continue
            del counts[key]
            if key in stored:
                stored.remove(key)
            else:
                removed.add(key)


class HeldKeys:
    """By medium. Every removal is of a key that was stored."""

    def __init__(self) -> None:
        self._media: dict[str, _Medium] = {}

    def __contains__(self, key: int) -> bool:
        """On the GPU."""
        medium = self._media.get(GPU)
        return medium is not None and key in medium.counts

    @property
    def has_changes(self) -> bool:
        return any(medium.stored or medium.removed for medium in self._media.values())

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Cleared):
                for medium in self._media.values():
                    medium.release([key for key, count in medium.counts.items() for _ in range(count)])
                continue
            medium = self._media.setdefault(event.medium, _Medium())
            if isinstance(event, Stored):
                medium.take(event.keys.tolist())
            else:
                medium.release(event.keys)

    def drain(self) -> tuple[TierDelta, ...]:
        """The net change since the last drain."""
        deltas = []
        for name, medium in self._media.items():
            if medium.stored or medium.removed:
                deltas.append(TierDelta(Tier(medium=name), _pack(medium.stored), _pack(medium.removed)))
                medium.stored, medium.removed = set(), set()
        return tuple(deltas)

    def table(self) -> tuple[TierDelta, ...]:
        """All that is held."""
        return tuple(TierDelta(Tier(medium=name), _pack(m.counts)) for name, m in self._media.items())


def _pack(keys: Iterable[int]) -> bytes:
    return np.fromiter(keys, dtype="<u8").tobytes()
