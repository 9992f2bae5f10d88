"""Blocks that decisions expect on the slots they were sent to, each for a time."""

from __future__ import annotations

from dataclasses import dataclass

from router.chains import Chains, KeyArray
from sightline_types import DecisionId

__all__ = ["Expectations"]


@dataclass(frozen=True, slots=True, eq=False)
class _Expected:
    slot: int
    keys: KeyArray
    expires_at: float


class Expectations:
    """By decision, oldest first. One owner reads and changes it."""

    def __init__(self) -> None:
        self._chains = Chains()
        self._by_owner: dict[DecisionId, _Expected] = {}
        self._owners: dict[int, dict[DecisionId, None]] = {}  # by slot, never empty, oldest first

    def expect(self, owner: DecisionId, slot: int, keys: KeyArray, expires_at: float) -> None:
        """Replaces what `owner` expected before."""
        self.drop(owner)
        if len(keys):
            self._chains.acquire(slot, keys)
            self._by_owner[owner] = _Expected(slot, keys, expires_at)
            self._owners.setdefault(slot, {})[owner] = None

    def drop(self, owner: DecisionId) -> None:
        """Idempotent."""
        expected = self._by_owner.pop(owner, None)
        if expected is None:
            return
        owners = self._owners[expected.slot]
        del owners[owner]
        if not owners:
            del self._owners[expected.slot]
        self._chains.release(expected.slot, expected.keys)

    def drop_slot(self, slot: int) -> None:
        for owner in list(self._owners.get(slot, ())):
            self.drop(owner)

    def trim(self, slot: int, max_blocks: int) -> None:
        """Drop the oldest of `slot` until at most `max_blocks` are left."""
        for owner in list(self._owners.get(slot, ())):
            if self.count(slot) <= max_blocks:
                return
            self.drop(owner)

    def sweep(self, now: float) -> None:
        """Drop those whose time is over."""
        for owner in [o for o, e in self._by_owner.items() if e.expires_at <= now]:
            self.drop(owner)

    def count(self, slot: int) -> int:
        """Distinct blocks."""
        return self._chains.count(slot)

    def total(self) -> int:
        """(slot, block) pairs."""
        return self._chains.total()

    def reach(self, keys: KeyArray) -> dict[int, int]:
        """By slot, how many leading `keys` are expected; slots with none are left out."""
        return self._chains.reach(keys)

    def check_integrity(self) -> None:
        """Raise AssertionError where owners and blocks contradict each other."""
        self._chains.check_integrity()
        owned = [(slot, owner) for slot, owners in self._owners.items() for owner in owners]
        assert sorted(owned) == sorted((e.slot, o) for o, e in self._by_owner.items()), "owners lost"
        everything = self._by_owner.values()
        prefixes = {(e.slot, e.keys[: end + 1].tobytes()) for e in everything for end in range(len(e.keys))}
        assert len(prefixes) == self.total(), "expected by nobody"
