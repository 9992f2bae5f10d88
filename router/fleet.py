"""The workers of the pool: what each promised, how far it was followed, and its row in the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from router.columns import WorkerTable
from router.config import RouterConfig
from router.history import RecentChanges
from router.keys import RouterError
from router.kv_groups import is_plain
from router.rates import WorkerRates, effective_rate
from router.status import PoolView
from sightline_types import EngineLoad, KeySpec, RelayStatus, WorkerContract, WorkerId, WorkerPush

__all__ = ["Band", "Fleet", "Member", "NoWorker", "UnknownWorker"]

Slots = npt.NDArray[np.intp]


class NoWorker(RouterError):
    """No worker is known, or all of them are excluded."""


class UnknownWorker(RouterError):
    """The request names a worker that is not in the pool."""


@dataclass(slots=True)
class Member:
    """One worker. spec: of its contract. needs_table: what it holds was not followed; to be sent anew."""

    worker: WorkerId
    slot: int
    contract: WorkerContract
    spec: KeySpec
    epoch: int
    applied_seq: int
    heard_at: float
    rates: WorkerRates
    changes: RecentChanges
    relay: RelayStatus = field(default_factory=RelayStatus)
    engine: EngineLoad = field(default_factory=EngineLoad)
    needs_table: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Some of the pool's workers. slots, workers: in the same order, not empty. names: of their replicas,
    encoded.

    is_uniform: all of them have the key spec of the first. has_groups: some decide by several cache groups.
    """

    slots: Slots
    workers: list[WorkerId]
    names: list[bytes]
    is_uniform: bool
    has_groups: bool


class Fleet:
    """Members by worker, and their rows by slot."""

    def __init__(self) -> None:
        self.members: dict[WorkerId, Member] = {}
        self.table = WorkerTable()
        self.pool = PoolView(0, {})
        self.specs: dict[KeySpec, int] = {}
        self._at: list[Member | None] = []
        self._everybody: Band | None = None
        self._heard_floor = float("-inf")  # nobody was heard before, as far as was looked

    def get(self, worker: WorkerId) -> Member | None:
        return self.members.get(worker)

    def at(self, slot: int) -> Member:
        member = self._at[slot]
        assert member is not None, f"slot {slot} is nobody's"
        return member

    def band(self, slots: Slots) -> Band:
        """Who they are; all slots are somebody's. Not made again for those that `eligible` mostly gives."""
        everybody = self._everybody
        return everybody if everybody is not None and everybody.slots is slots else self._make_band(slots)

    def _make_band(self, slots: Slots) -> Band:
        at, rows = self._at, self.table.rows.take(slots)
        workers = [member.worker for slot in slots.tolist() if (member := at[slot]) is not None]
        names = [worker.replica.encode() for worker in workers]
        is_uniform = bool((rows["spec"] == rows["spec"][:1]).all())
        return Band(slots, workers, names, is_uniform, bool(rows["is_grouped"].any()))

    def enter(
        self, msg: WorkerPush, contract: WorkerContract, slot: int, now: float, config: RouterConfig
    ) -> Member:
        """A worker sent its table: it joins, or begins anew with what was learned of its speed."""
        known = self.members.get(msg.worker)
        member = Member(
            msg.worker,
            slot,
            contract,
            contract.spec,
            msg.epoch,
            msg.seq,
            now,
            known.rates if known is not None else WorkerRates.from_config(config),
            RecentChanges(msg.seq),
        )
        self._place(member)
        self._fill_row(member, config)
        if known is None or known.contract != contract:
            self._pool_changed()
        return member

    def _place(self, member: Member) -> None:
        self.members[member.worker] = member
        self.table.ensure(member.slot + 1)
        self._at += [None] * (len(self.table.rows) - len(self._at))
        self._at[member.slot] = member
        self._everybody = None

    def _fill_row(self, member: Member, config: RouterConfig) -> None:
        contract, row = member.contract, self.table.rows[member.slot]
        row["is_live"] = True
        row["heard_at"] = member.heard_at
        row["spec"] = self.specs.setdefault(member.spec, len(self.specs))
        row["block_size"] = contract.block_size
        row["drops_last"] = contract.drops_last_matched_block
        row["has_events"] = has_events(contract, config)
        row["is_grouped"] = not is_plain(contract)
        row["capacity_blocks"] = contract.kv_capacity_tokens / contract.block_size

    def heard(self, member: Member, now: float) -> None:
        member.heard_at = now
        self.table.rows["heard_at"][member.slot] = now

    def follow(self, member: Member, msg: WorkerPush) -> None:
        """A message was applied. Where the replica says that nothing runs, the engine's last word on its
        load is out of date: it comes with its outputs only."""
        member.applied_seq, member.relay = msg.seq, msg.relay
        if msg.load is not None:
            member.engine = msg.load
        if msg.relay.idle:
            member.engine = replace(member.engine, num_running=0, num_waiting=0)
        row = self.table.rows[member.slot]
        row["engine_running"] = member.engine.num_running
        row["engine_waiting"] = member.engine.num_waiting
        row["kv_usage"] = member.engine.kv_usage

    def leave(self, member: Member) -> None:
        del self.members[member.worker]
        self._at[member.slot] = None
        self._everybody = None
        self.table.clear(member.slot)
        self._pool_changed()

    def _pool_changed(self) -> None:
        contracts = {worker: member.contract for worker, member in self.members.items()}
        self.pool = PoolView(self.pool.version + 1, contracts, self.pool.is_limited)

    def limit(self, is_limited: bool) -> None:
        """Whether admission limits hold, for whoever looks at the pool."""
        if is_limited != self.pool.is_limited:
            self.pool = PoolView(self.pool.version + 1, self.pool.contracts, is_limited)

    def eligible(self, exclude: Sequence[WorkerId], heard_since: float) -> Slots:
        """Slots of the workers heard lately and not excluded; silent ones where nobody else is left.

        Raises:
            NoWorker: nobody is left.
        """
        if not exclude and self._all_heard(heard_since):
            return self._all().slots
        rows = self.table.rows
        able = rows["is_live"].copy()
        for worker in exclude:
            member = self.members.get(worker)
            if member is not None:
                able[member.slot] = False
        heard = np.flatnonzero(able & (rows["heard_at"] >= heard_since))
        slots = heard if len(heard) else np.flatnonzero(able)
        if not len(slots):
            raise NoWorker(f"{len(self.members)} workers known, all excluded")
        return slots

    def _all(self) -> Band:
        if self._everybody is None:
            self._everybody = self._make_band(np.flatnonzero(self.table.rows["is_live"]))
        return self._everybody

    def _all_heard(self, since: float) -> bool:
        """Whether there is somebody, and nobody silent. Who was heard once was not heard earlier, so that
        it is enough to look again when the time in question has passed the last look's result."""
        if not self.members:
            return False
        if self._heard_floor < since:
            self._heard_floor = float(self.table.rows["heard_at"].take(self._all().slots).min())
        return self._heard_floor >= since

    def named(self, name: str) -> Slots:
        """Slots of the worker of this id, or of all ranks of this replica.

        Raises:
            UnknownWorker: there is none; says who there is.
        """
        slots = [m.slot for w, m in self.members.items() if name in (str(w), w.replica)]
        if not slots:
            known = ", ".join(sorted(map(str, self.members))[:16]) or "none"
            raise UnknownWorker(f"no worker {name[:80]!r}; known: {known}")
        return np.array(slots, dtype=np.intp)

    def refresh_rates(self, now: float, config: RouterConfig) -> None:
        """Bring what was learned into the rows."""
        memory_s = config.rate_memory_s
        members = list(self.members.values())
        prefill = [member.rates.prefill(now, memory_s) for member in members]
        encode = [member.rates.encode(now, memory_s) for member in members]
        for member, own_prefill, own_encode in zip(members, prefill, encode, strict=True):
            row = self.table.rows[member.slot]
            row["prefill_ms_per_token"] = effective_rate(own_prefill, prefill)
            row["encode_ms_per_token"] = effective_rate(own_encode, encode)

    def check_integrity(self) -> None:
        """Raise AssertionError where rows and members contradict each other."""
        live = {slot for slot, row in enumerate(self.table.rows) if row["is_live"]}
        assert live == {member.slot for member in self.members.values()}, "rows of lost workers"
        assert all(self._at[m.slot] is m for m in self.members.values()), "slots name others"
        assert set(self.pool.contracts) == set(self.members), "the pool view is stale"


def has_events(contract: WorkerContract, config: RouterConfig) -> bool:
    """Whether a worker's KV events are followed."""
    return contract.publishes_events and config.policy != "approximate"
