"""Slots: each worker's place in arrays, from the first time it is named until it is forgotten."""

from __future__ import annotations

from sightline_types import WorkerId

__all__ = ["Slots"]


class Slots:
    """Length: more than any slot given so far."""

    def __init__(self) -> None:
        self._slots: dict[WorkerId, int] = {}
        self._at: list[WorkerId | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._at)

    def of(self, worker: WorkerId) -> int | None:
        return self._slots.get(worker)

    def worker_at(self, slot: int) -> WorkerId | None:
        return self._at[slot] if 0 <= slot < len(self._at) else None

    def workers(self) -> set[WorkerId]:
        return set(self._slots)

    def take(self, worker: WorkerId) -> int:
        """A slot for a worker that has none."""
        if not self._free:
            self._free.append(len(self._at))
            self._at.append(None)
        slot = self._slots[worker] = self._free.pop()
        self._at[slot] = worker
        return slot

    def free(self, worker: WorkerId) -> None:
        """The worker's slot may go to another."""
        slot = self._slots.pop(worker)
        self._at[slot] = None
        self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError where slots are lost or given twice."""
        assert sorted([*self._slots.values(), *self._free]) == list(range(len(self._at))), "slots lost"
        at = {worker: slot for slot, worker in enumerate(self._at) if worker is not None}
        assert at == self._slots, "slots and workers disagree"
