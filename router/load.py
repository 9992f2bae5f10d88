"""What is under way on each worker: one booking per decision, from its choice to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from router.chains import Chains, CountArray, KeyArray
from router.columns import WorkerTable
from router.copies import SharedRun
from sightline_types import DecisionId

__all__ = ["BookedLoad", "LoadBook", "WorkerLoad"]

_NO_KEYS: KeyArray = np.empty(0, dtype=np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class BookedLoad:
    """What one decision adds to a worker until its end. keys: of its blocks, shape (n,), uint64."""

    prefill_tokens: int
    encode_tokens: int
    keys: KeyArray = field(default_factory=lambda: _NO_KEYS)


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's open bookings, summed up.

    prefill_tokens, encode_tokens, waiting_requests: of the requests that have no first token yet.
    decode_blocks: distinct blocks of all open requests.
    """

    prefill_tokens: int = 0
    encode_tokens: int = 0
    active_requests: int = 0
    decode_blocks: int = 0
    waiting_requests: int = 0


@dataclass(slots=True)
class _Booking:
    """started: a replica has it. prefilled: the first token came, and `load` is without prefill.
    is_alone: no other prompt waited on the worker at any time before its first token."""

    slot: int
    load: BookedLoad
    expires_at: float
    booked_at: float
    started: bool = False
    prefilled: bool = False
    is_alone: bool = True


class LoadBook:
    """Bookings by decision id, and their sums in the workers' rows. Every change is idempotent by id."""

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._active = Chains()
        self._bookings: dict[DecisionId, _Booking] = {}
        self._waiting: dict[int, set[DecisionId]] = {}  # by slot, never empty

    def __contains__(self, decision_id: DecisionId) -> bool:
        return decision_id in self._bookings

    def __len__(self) -> int:
        return len(self._bookings)

    def book(
        self, decision_id: DecisionId, slot: int, load: BookedLoad, expires_at: float, now: float = 0.0
    ) -> None:
        """Add `load` to the worker at `slot` until released. An earlier booking of the same decision is
        replaced."""
        self.release(decision_id)
        self._enter(decision_id, _Booking(slot, load, expires_at, now))

    def renew(self, decision_id: DecisionId, expires_at: float, *, started: bool = True) -> None:
        """A sign of life: the lease ends at `expires_at`.

        started: by the replica that has the request. The ingress's word only counts before that.
        """
        booking = self._bookings.get(decision_id)
        if booking is None or (booking.started and not started):
            return
        booking.expires_at = expires_at
        booking.started = started

    def first_token(self, decision_id: DecisionId) -> None:
        """Prefill and encoding are done; the request's blocks stay until it is released."""
        booking = self._bookings.get(decision_id)
        if booking is None or booking.prefilled:
            return
        self._leave_waiting(decision_id, booking)
        booking.load = _prefilled(booking.load)
        booking.prefilled = True

    def release(self, decision_id: DecisionId) -> bool:
        """The request has ended. Whether it was booked."""
        booking = self._bookings.pop(decision_id, None)
        if booking is None:
            return False
        if not booking.prefilled:
            self._leave_waiting(decision_id, booking)
        slot = booking.slot
        self._table.add(slot, "requests", -1)
        self._table.add(slot, "decode_blocks", -self._active.release(slot, booking.load.keys))
        return True

    def move(self, decision_id: DecisionId, slot: int, load: BookedLoad) -> None:
        """Another worker serves the request; `load` is what it costs there."""
        booking = self._bookings.get(decision_id)
        if booking is None:
            return
        self.release(decision_id)
        booking.slot, booking.load = slot, _prefilled(load) if booking.prefilled else load
        booking.is_alone = False
        self._enter(decision_id, booking)

    def drop_slot(self, slot: int) -> tuple[DecisionId, ...]:
        """Release whatever is booked at `slot`; which decisions that were."""
        return self._release_all([i for i, b in self._bookings.items() if b.slot == slot])

    def sweep(self, now: float) -> tuple[DecisionId, ...]:
        """Release what gave no sign of life in time; which decisions that were."""
        return self._release_all([i for i, b in self._bookings.items() if b.expires_at <= now])

    def started_before(self, slot: int, moment: float) -> tuple[DecisionId, ...]:
        """The bookings at `slot` that a replica has taken, and that were made before `moment`."""
        mine = ((i, b) for i, b in self._bookings.items() if b.slot == slot)
        return tuple(i for i, b in mine if b.started and b.booked_at < moment)

    def was_alone(self, decision_id: DecisionId) -> bool:
        """Whether nothing else waited for prefill while this request did, so that its time to the first
        token tells how fast its worker is."""
        booking = self._bookings.get(decision_id)
        return booking is not None and booking.is_alone

    def of(self, slot: int) -> WorkerLoad:
        get = self._table.get
        return WorkerLoad(
            get(slot, "prefill_tokens"),
            get(slot, "encode_tokens"),
            get(slot, "requests"),
            get(slot, "decode_blocks"),
            get(slot, "waiting"),
        )

    def would_add(self, keys: KeyArray) -> CountArray:
        """By slot: distinct blocks that a request with these keys would add."""
        return self._active.would_add(keys, len(self._table.rows))

    def shared(self, keys: KeyArray) -> list[SharedRun]:
        """Which beginnings of `keys` open requests share."""
        return self._active.shared(keys)

    def slot_of(self, decision_id: DecisionId) -> int | None:
        booking = self._bookings.get(decision_id)
        return booking.slot if booking is not None else None

    def check_integrity(self) -> None:
        """Raise AssertionError where the sums are not those of the bookings."""
        self._active.check_integrity()
        for slot in range(len(self._table.rows)):
            mine = {i: b for i, b in self._bookings.items() if b.slot == slot}
            chains = [b.load.keys for b in mine.values()]
            keys = {chain[: end + 1].tobytes() for chain in chains for end in range(len(chain))}
            waiting = {i for i, b in mine.items() if not b.prefilled}
            sums = WorkerLoad(
                sum(b.load.prefill_tokens for b in mine.values()),
                sum(b.load.encode_tokens for b in mine.values()),
                len(mine),
                len(keys),
                len(waiting),
            )
            assert self.of(slot) == sums, f"slot {slot}: {self.of(slot)} booked, {sums} by its bookings"
            assert self._waiting.get(slot, set()) == waiting, f"slot {slot}: others wait than are booked"
            assert self._active.count(slot) == len(keys), f"slot {slot}: active blocks"

    def _enter(self, decision_id: DecisionId, booking: _Booking) -> None:
        self._bookings[decision_id] = booking
        slot = booking.slot
        self._table.add(slot, "requests", 1)
        self._table.add(slot, "decode_blocks", self._active.acquire(slot, booking.load.keys))
        if not booking.prefilled:
            self._join_waiting(decision_id, booking)

    def _join_waiting(self, decision_id: DecisionId, booking: _Booking) -> None:
        self._count(booking, 1)
        waiting = self._waiting.setdefault(booking.slot, set())
        if waiting:
            booking.is_alone = False
            if len(waiting) == 1:
                self._bookings[next(iter(waiting))].is_alone = False
        waiting.add(decision_id)

    def _leave_waiting(self, decision_id: DecisionId, booking: _Booking) -> None:
        self._count(booking, -1)
        waiting = self._waiting[booking.slot]
        waiting.remove(decision_id)
        if not waiting:
            del self._waiting[booking.slot]

    def _count(self, booking: _Booking, sign: int) -> None:
        self._table.add(booking.slot, "waiting", sign)
        self._table.add(booking.slot, "prefill_tokens", sign * booking.load.prefill_tokens)
        self._table.add(booking.slot, "encode_tokens", sign * booking.load.encode_tokens)

    def _release_all(self, decision_ids: Iterable[DecisionId]) -> tuple[DecisionId, ...]:
        released = tuple(decision_ids)
        for decision_id in released:
            self.release(decision_id)
        return released


def _prefilled(load: BookedLoad) -> BookedLoad:
    return replace(load, prefill_tokens=0, encode_tokens=0)
