"""What is under way on each worker: one booking per decision, from its choice to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sightline_types import BookedLoad, DecisionId, WorkerId

__all__ = ["LoadBook", "WorkerLoad"]


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's open bookings, summed up.

    prefill_tokens, encode_tokens: of the requests that have no first token yet.
    decode_blocks: distinct blocks of all open requests.
    """

    prefill_tokens: int = 0
    encode_tokens: int = 0
    active_requests: int = 0
    decode_blocks: int = 0


@dataclass(frozen=True, slots=True)
class _Booking:
    """prefilled: the first token came, and `load` is without prefill and encoding."""

    worker: WorkerId
    load: BookedLoad
    expires_at: float
    prefilled: bool = False


@dataclass(slots=True)
class _Sums:
    prefill_tokens: int = 0
    encode_tokens: int = 0
    requests: int = 0
    blocks: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class LoadBook:
    """Bookings by decision id, and their sums per worker. Every change is idempotent by id."""

    _bookings: dict[DecisionId, _Booking] = field(default_factory=dict)
    _sums: dict[WorkerId, _Sums] = field(default_factory=dict)

    def __contains__(self, decision_id: DecisionId) -> bool:
        return decision_id in self._bookings

    def __len__(self) -> int:
        return len(self._bookings)

    def book(self, decision_id: DecisionId, worker: WorkerId, load: BookedLoad, expires_at: float) -> None:
        """Add `load` to `worker` until released. An earlier booking of the same decision is replaced."""
        self.release(decision_id)
        self._enter(decision_id, _Booking(worker, load, expires_at))

    def renew(self, decision_id: DecisionId, expires_at: float) -> None:
        """A sign of life: the lease ends at `expires_at`."""
        booking = self._bookings.get(decision_id)
        if booking is not None:
            self._bookings[decision_id] = replace(booking, expires_at=expires_at)

    def first_token(self, decision_id: DecisionId) -> None:
        """Prefill and encoding are done; the request's blocks stay until it is released."""
        booking = self._bookings.get(decision_id)
        if booking is None:
            return
        self._sums[booking.worker].prefill_tokens -= booking.load.prefill_tokens
        self._sums[booking.worker].encode_tokens -= booking.load.encode_tokens
        self._bookings[decision_id] = replace(booking, load=_prefilled(booking.load), prefilled=True)

    def release(self, decision_id: DecisionId) -> bool:
        """The request has ended. Whether it was booked."""
        booking = self._bookings.pop(decision_id, None)
        if booking is None:
            return False
        sums = self._sums[booking.worker]
        sums.prefill_tokens -= booking.load.prefill_tokens
        sums.encode_tokens -= booking.load.encode_tokens
        sums.requests -= 1
        for key in booking.load.keys:
            sums.blocks[key] -= 1
            if not sums.blocks[key]:
                del sums.blocks[key]
        if not sums.requests:
            del self._sums[booking.worker]
        return True

    def move(self, decision_id: DecisionId, worker: WorkerId, load: BookedLoad | None = None) -> None:
        """Another worker serves the request; `load` is what it costs there (as before where None)."""
        booking = self._bookings.get(decision_id)
        if booking is None:
            return
        self.release(decision_id)
        load = load or booking.load
        load = _prefilled(load) if booking.prefilled else load
        self._enter(decision_id, replace(booking, worker=worker, load=load))

    def drop_worker(self, worker: WorkerId) -> tuple[DecisionId, ...]:
        """Release whatever is booked on `worker`; which decisions that were."""
        return self._release_all([i for i, b in self._bookings.items() if b.worker == worker])

    def sweep(self, now: float) -> tuple[DecisionId, ...]:
        """Release what gave no sign of life in time; which decisions that were."""
        return self._release_all([i for i, b in self._bookings.items() if b.expires_at <= now])

    def of(self, worker: WorkerId) -> WorkerLoad:
        sums = self._sums.get(worker)
        if sums is None:
            return WorkerLoad()
        return WorkerLoad(sums.prefill_tokens, sums.encode_tokens, sums.requests, len(sums.blocks))

    def would_hold(self, worker: WorkerId, keys: Iterable[int]) -> int:
        """`decode_blocks` of `worker` if a request with these keys were booked there."""
        sums = self._sums.get(worker)
        blocks: Counter[int] = sums.blocks if sums is not None else Counter()
        return len(blocks) + sum(key not in blocks for key in set(keys))

    def worker_of(self, decision_id: DecisionId) -> WorkerId | None:
        booking = self._bookings.get(decision_id)
        return booking.worker if booking is not None else None

    def check_integrity(self) -> None:
        """Raise AssertionError where the sums are not those of the bookings."""
        fresh = LoadBook()
        for decision_id, booking in self._bookings.items():
            fresh._enter(decision_id, booking)
        assert self._sums == fresh._sums, "the sums contradict the bookings"
        for worker in self._sums:
            load = self.of(worker)
            assert min(load.prefill_tokens, load.encode_tokens) >= 0, f"{worker}: negative load {load}"

    def _enter(self, decision_id: DecisionId, booking: _Booking) -> None:
        self._bookings[decision_id] = booking
        sums = self._sums.setdefault(booking.worker, _Sums())
        sums.prefill_tokens += booking.load.prefill_tokens
        sums.encode_tokens += booking.load.encode_tokens
        sums.requests += 1
        sums.blocks.update(booking.load.keys)

    def _release_all(self, decision_ids: list[DecisionId]) -> tuple[DecisionId, ...]:
        for decision_id in decision_ids:
            self.release(decision_id)
        return tuple(decision_ids)


def _prefilled(load: BookedLoad) -> BookedLoad:
    return replace(load, prefill_tokens=0, encode_tokens=0)
