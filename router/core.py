"""The router itself, without I/O: what the workers say goes in, decisions come out.

One owner calls it, one call at a time; each call is one step. The clock and the random source are passed
in. Its errors belong to the tree that `router.keys` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random

import numpy as np
import numpy.typing as npt

from router.audit import Audit, AuditCounters
from router.config import RouterConfig
from router.contracts import (
    ContractRefused,
    FamilyStatus,
    check_contract,
    family_statuses,
    worker_reasons,
)
from router.fleet import Fleet, Member, NoWorker, UnknownWorker, has_events
from router.intake import Intake, is_older
from router.receipts import Receipt
from router.requests import Requests
from router.snapshot import WorkerTable
from router.status import CoreStats, Counts, Holdings, PoolView, RateStatus, WorkerStatus
from router.structures import make_index
from sightline_types import (
    Decision,
    DecisionId,
    DegradeReason,
    PushReply,
    RouteQuery,
    Tier,
    TierDelta,
    WorkerId,
    WorkerPush,
)

__all__ = [
    "ContractRefused",
    "CoreStats",
    "FamilyStatus",
    "NoWorker",
    "PoolView",
    "Receipt",
    "RouterCore",
    "UnknownWorker",
    "WorkerStatus",
]

#: A worker is forgotten after so many times `worker_silence_s`.
_SILENCES_UNTIL_FORGOTTEN = 4


class RouterCore:
    """Scores, picks and books.

    clock: monotonic seconds.
    epoch: names this life of the router; workers see a new one in the reply to their push.
    random: only comparison policies and a temperature draw from it.
    """

    def __init__(
        self, config: RouterConfig, *, clock: Callable[[], float], epoch: int, random: Random
    ) -> None:
        self.epoch = epoch
        self._config = config
        self._clock = clock
        self._index = make_index(config.index_memory_bytes)
        self._fleet = Fleet()
        self._audit = Audit()
        self._audit.configure(config)
        self._counts = Counts()
        self._requests = Requests(
            config, self._fleet, self._index, self._audit, self._counts, clock=clock, random=random
        )
        self._intake = Intake()
        self._restored: dict[WorkerId, WorkerTable] = {}
        self._restored_until = float("-inf")
        self._fleet.limit(config.admission.is_limited)
        self._awaited: set[WorkerId] = set()
        self._warm_at = float("-inf")

    def configure(self, config: RouterConfig) -> None:
        """Live settings: policy, weights, limits, times. Blocks, bookings, sessions and audits stay.

        To and from the policy `approximate` what is known of the caches is given up, and asked for again.
        """
        self._config = config
        self._audit.configure(config)
        self._requests.configure(config)
        self._fleet.limit(config.admission.is_limited)
        for member in self._fleet.members.values():
            member.rates.configure(config)
            self._follow_events(member, has_events(member.contract, config))
        self._fleet.refresh_rates(self._clock(), config)

    def _follow_events(self, member: Member, follow: bool) -> None:
        row = self._fleet.table.rows[member.slot]
        if bool(row["has_events"]) == follow:
            return
        row["has_events"] = follow
        self._index.drop_expected_of(member.worker)
        self._index.replace(member.worker, ())
        member.needs_table = follow

    # The workers' channel

    def push(self, msg: WorkerPush) -> PushReply:
        """Take in one message of a worker. Its lifecycle events count even where its residency does not.

        Raises:
            ContractRefused: the message registers a worker that cannot be served.
        """
        self._counts.pushes += 1
        is_late = self._intake.has_left(msg)
        try:
            reply = PushReply(self.epoch, msg.seq) if is_late else self._apply(self._screen(msg))
        finally:
            is_partial = msg.relay.partial or bool(self._intake.why(msg.worker))
            for event in msg.lifecycle:
                self._requests.report(event, msg.worker, is_partial=is_partial)
        for decision_id in msg.running or ():
            self._requests.renew(decision_id, started=True)
        if msg.leaving:
            self.forget(msg.worker)
        return reply

    def _screen(self, msg: WorkerPush) -> WorkerPush:
        """The message as far as it is believed. A worker that is not any more holds nothing from now on."""
        was_trusted = not self._intake.why(msg.worker)
        screened = self._intake.screen(msg)
        if was_trusted and self._intake.why(msg.worker):
            self._counts.malformed += 1
            if self._fleet.get(msg.worker) is not None:
                self._index.drop_expected_of(msg.worker)
                self._index.replace(msg.worker, ())
        return screened

    def _apply(self, msg: WorkerPush) -> PushReply:
        if msg.leaving:
            return PushReply(self.epoch, msg.seq)
        known = self._fleet.get(msg.worker) or self._resume(msg)
        if known is not None:
            self._fleet.heard(known, self._clock())
            if is_older(msg.epoch, known.epoch):
                self._counts.duplicates += 1
                return PushReply(self.epoch, known.applied_seq)
        if known is None or known.epoch != msg.epoch:
            return self._register(msg) if msg.table else self._ask_table(-1)
        if msg.seq <= known.applied_seq:
            self._counts.duplicates += 1
            return PushReply(self.epoch, known.applied_seq)
        if msg.table:
            return self._register(msg)
        if msg.seq > known.applied_seq + 1 or known.needs_table:
            return self._ask_table(known.applied_seq)
        if self._fleet.table.rows["has_events"][known.slot]:
            for delta in msg.deltas:
                self._index.apply(msg.worker, delta)
            known.changes.note(msg.seq, msg.deltas)
        self._fleet.follow(known, msg)
        return PushReply(self.epoch, msg.seq)

    def _ask_table(self, applied_seq: int) -> PushReply:
        self._counts.gaps += 1
        return PushReply(self.epoch, applied_seq, "table")

    def _resume(self, msg: WorkerPush) -> Member | None:
        """Take up a worker's table of a snapshot, where the epoch is the same and its own is not in hand."""
        table = self._restored.pop(msg.worker, None)
        if table is None or msg.table or table.epoch != msg.epoch or self._intake.why(msg.worker):
            return None
        self._register(
            WorkerPush(
                table.worker,
                table.epoch,
                table.applied_seq,
                table.deltas,
                table=True,
                contract=table.contract,
            )
        )
        return self._fleet.get(msg.worker)

    def _register(self, msg: WorkerPush) -> PushReply:
        try:
            contract = check_contract(msg)
        except ContractRefused:
            self.forget(msg.worker)
            raise
        known = self._fleet.get(msg.worker)
        if known is None or known.epoch != msg.epoch:
            self._index.drop_expected_of(msg.worker)
            self._audit.start_over(msg.worker)
        self._index.replace(msg.worker, msg.deltas if has_events(contract, self._config) else ())
        slot = self._index.slot_of(msg.worker)
        assert slot is not None, "the index gives a slot to whoever it replaces"
        if known is None or known.epoch != msg.epoch:
            tokens = contract.encoder_cache_tokens or self._config.encoder_cache_tokens
            self._requests.encoders.open(slot, tokens)
        member = self._fleet.enter(msg, contract, slot, self._clock(), self._config)
        self._fleet.refresh_rates(self._clock(), self._config)
        self._counts.tables += 1
        self._awaited.discard(msg.worker)
        self._fleet.follow(member, msg)
        return PushReply(self.epoch, msg.seq)

    # Decisions

    def decide(self, query: RouteQuery) -> Decision:
        """Select a worker, book the load on it and expect the request's blocks there.

        Raises:
            NoWorker: nobody can take it.
            UnknownWorker: it is pinned to a worker that is not here.
            Overloaded: the admission limits refuse it.
        """
        return self._requests.decide(query)

    def cancel(self, decision_id: DecisionId) -> None:
        """Undo a decision that nobody acted on. Idempotent; an unknown one changes nothing."""
        self._requests.cancel(decision_id)

    def rebook(self, decision_id: DecisionId, worker: WorkerId) -> None:
        """Another worker than the decided one serves: its booking and expected blocks go there.

        Idempotent; an unknown decision changes nothing. Where the pool does not know `worker`, the load
        is released.
        """
        self._requests.rebook(decision_id, worker)

    def renew(self, decision_ids: Iterable[DecisionId]) -> None:
        """Their ingress still waits for a replica to take them: their first lease begins again."""
        for decision_id in decision_ids:
            self._requests.renew(decision_id, started=False)

    # The pool and time

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone: its blocks, its bookings and its audit. Idempotent."""
        self._awaited.discard(worker)
        self._restored.pop(worker, None)
        self._intake.forget(worker)
        member = self._fleet.get(worker)
        if member is None:
            return
        self._requests.drop_worker(member)
        self._fleet.leave(member)
        self._index.forget(worker)
        self._audit.forget(worker)

    def forget_replica(self, replica: str) -> None:
        """A replica died, and all its data-parallel ranks with it. Idempotent."""
        known = {*self._fleet.members, *self._awaited, *self._restored}
        for worker in [worker for worker in known if worker.replica == replica]:
            self.forget(worker)

    def trust(self, worker: WorkerId) -> tuple[str, ...] | None:
        """An operator's word: all that `worker` predicts is believed again. Which layouts were not ("" is
        text); None where the worker is unknown."""
        return self._audit.trust(worker) if self._fleet.get(worker) is not None else None

    def sweep(self) -> None:
        """Release what is overdue: leases, expected blocks, workers that fell silent."""
        now = self._clock()
        self._requests.sweep(now)
        self._index.sweep(now)
        if now >= self._restored_until:
            self._restored.clear()
        forget_before = now - _SILENCES_UNTIL_FORGOTTEN * self._config.worker_silence_s
        for member in [m for m in self._fleet.members.values() if m.heard_at < forget_before]:
            self.forget(member.worker)
        self._fleet.refresh_rates(now, self._config)

    def begin_warm(self, roster: Iterable[WorkerId]) -> None:
        """Wait for the tables of the workers on `roster`, for `warm_timeout_s` at most."""
        self._awaited = set(roster) - self._fleet.members.keys()
        self._warm_at = self._clock() + self._config.warm_timeout_s

    def restore(self, tables: Mapping[WorkerId, WorkerTable]) -> None:
        """What an earlier life wrote down: each table waits, for a while, for its worker to say that it is
        in the same epoch, and serves until the worker's own comes."""
        self._restored = dict(tables)
        self._restored_until = self._clock() + _SILENCES_UNTIL_FORGOTTEN * self._config.worker_silence_s

    def table_of(self, worker: WorkerId) -> WorkerTable | None:
        """What `worker` is known to hold on its GPU, to be written down; None where nothing is followed."""
        member = self._fleet.get(worker)
        if member is None or member.needs_table or not has_events(member.contract, self._config):
            return None
        if self._intake.why(worker):
            return None
        tiers = [Tier(group) for group in range(len(member.contract.kv_groups))]
        held = [TierDelta(t, self._index.held_keys(worker, t).astype("<u8").tobytes()) for t in tiers]
        deltas = tuple(delta for delta in held if delta.stored)
        return WorkerTable(worker, member.contract, member.epoch, member.applied_seq, deltas)

    def is_warm(self) -> bool:
        return not self._awaited or self._clock() >= self._warm_at

    def late_workers(self) -> tuple[WorkerId, ...]:
        """Those on the roster whose tables have not come yet."""
        return tuple(sorted(self._awaited))

    # Questions

    def pool(self) -> PoolView:
        return self._fleet.pool

    def receipt(self, decision_id: DecisionId) -> Receipt | None:
        return self._requests.receipts.get(decision_id)

    def held_keys(self, worker: WorkerId) -> npt.NDArray[np.uint64]:
        """Every block that `worker` is known to hold, by key, ascending: for audits."""
        return self._index.held_keys(worker)

    def workers(self) -> tuple[WorkerStatus, ...]:
        return tuple(self._status(member) for _, member in sorted(self._fleet.members.items()))

    def _status(self, member: Member) -> WorkerStatus:
        worker, contract = member.worker, member.contract
        load, audit = self._requests.book.of(member.slot), self._audit.of(worker)
        return WorkerStatus(
            worker=worker,
            contract=contract,
            epoch=member.epoch,
            applied_seq=member.applied_seq,
            relay=member.relay,
            load=load,
            engine=member.engine,
            rates=self._rates(member),
            num_blocks=self._index.num_blocks(worker),
            expected_blocks=self._index.num_expected(worker),
            encoder_cached_tokens=self._requests.encoders.num_tokens(member.slot),
            idle=member.relay.idle and not load.active_requests,
            silent_s=self._clock() - member.heard_at,
            audit=audit,
            families=family_statuses(contract, audit),
            reasons=self._reasons(member, audit),
            distrusted=self._distrust(member),
        )

    def _distrust(self, member: Member) -> str:
        return self._intake.why(member.worker) or member.relay.distrusted

    def _reasons(self, member: Member, audit: AuditCounters) -> tuple[DegradeReason, ...]:
        reasons = worker_reasons(member.contract, audit)
        return (*reasons, DegradeReason.EVENTS_DISTRUSTED) if self._distrust(member) else reasons

    def _rates(self, member: Member) -> RateStatus:
        get, rates = self._fleet.table.get, member.rates
        return RateStatus(
            get(member.slot, "prefill_ms_per_token"),
            get(member.slot, "encode_ms_per_token"),
            rates.prefill_samples,
            rates.encode_samples,
        )

    def stats(self) -> CoreStats:
        requests = self._requests
        receipts = requests.receipts
        held = Holdings(
            len(requests), len(receipts), receipts.memory_bytes, len(requests.sessions), self._index.stats()
        )
        return self._counts.stats(self._config.policy, held)

    def check_integrity(self) -> None:
        """Raise AssertionError where index, bookings and open decisions contradict each other."""
        self._index.check_integrity()
        self._fleet.check_integrity()
        self._requests.check_integrity()
        assert self._index.workers() == set(self._fleet.members), "the index knows other workers"
        for worker, member in self._fleet.members.items():
            assert self._index.slot_of(worker) == member.slot, f"{worker}: another slot in the index"
