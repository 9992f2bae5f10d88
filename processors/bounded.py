"""Maps that forget: by age, by number, by weight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["BoundedMap"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    value: V
    weight: int
    expires: float


class BoundedMap(Generic[K, V]):
    """The entries that were used last, within a budget.

    budget: sum of weights at most; an entry heavier than that is not kept.
    clock: seconds, of any origin.
    """

    def __init__(self, budget: int, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._clock = clock
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: K) -> V | None:
        """None where there is none, or none any more."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: K, value: V, *, ttl_s: float, weight: int = 1) -> None:
        self.drop(key)
        if ttl_s <= 0 or weight > self._budget:
            return
        self._entries[key] = _Entry(value, weight, self._clock() + ttl_s)
        self._weight += weight
        while self._weight > self._budget:
            _, oldest = self._entries.popitem(last=False)
            self._weight -= oldest.weight

    def drop(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weight -= entry.weight

    def check_integrity(self) -> None:
        """
        Raises:
            AssertionError: the books do not add up.
        """
        assert self._weight == sum(entry.weight for entry in self._entries.values()) <= self._budget
