"""The router itself, without I/O: what the workers say goes in, decisions come out.

One owner calls it, one call at a time; each call is one step. The clock and the random source are passed
in. Its errors belong to the tree that `router.keys` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import numpy.typing as npt

from router.audit import (
    Audit,
    ContractRefused,
    FamilyStatus,
    check_contract,
    family_statuses,
    worker_reasons,
)
from router.config import RouterConfig
from router.cost import Rates, encode_tokens_left, score
from router.credit import credit
from router.index import Leading
from router.keys import RouterError
from router.kv_groups import cached_tokens, is_plain
from router.load import LoadBook, WorkerLoad
from router.policies import make_policy
from router.receipts import Outcome, Receipt, ReceiptRing
from router.status import CoreStats, Counts, Holdings, PoolView, WorkerStatus
from router.structures import make_index
from sightline_types import (
    BookedLoad,
    CandidateScore,
    Decision,
    DecisionId,
    DecisionReason,
    DegradeReason,
    EngineLoad,
    KeySpec,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    RelayStatus,
    RouteQuery,
    WorkerContract,
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
    "WorkerStatus",
]

#: A worker is forgotten after so many times `worker_silence_s`.
_SILENCES_UNTIL_FORGOTTEN = 4


class NoWorker(RouterError):
    """No worker is known, or all of them are excluded."""


@dataclass(slots=True)
class _Worker:
    contract: WorkerContract
    epoch: int
    applied_seq: int
    heard_at: float
    relay: RelayStatus = field(default_factory=RelayStatus)
    engine: EngineLoad = field(default_factory=EngineLoad)


@dataclass(frozen=True, slots=True)
class _Open:
    """A decision whose request has not ended."""

    query: RouteQuery
    decision: Decision


@dataclass(frozen=True, slots=True)
class _State:
    """What a policy may ask while it settles one query."""

    query: RouteQuery
    book: LoadBook
    workers: Mapping[WorkerId, _Worker]

    def load(self, worker: WorkerId) -> WorkerLoad:
        return self.book.of(worker)

    def block_size(self, worker: WorkerId) -> int:
        return self.workers[worker].contract.block_size

    def decode_blocks_with_request(self, worker: WorkerId) -> int:
        return self.book.would_hold(worker, _keys(self.query, self.workers[worker].contract.spec))


class RouterCore:
    """Scores, picks and books.

    clock: monotonic seconds.
    epoch: names this life of the router; workers see a new one in the reply to their push.
    random: only the comparison policies draw from it.
    """

    def __init__(
        self, config: RouterConfig, *, clock: Callable[[], float], epoch: int, random: Random
    ) -> None:
        self.epoch = epoch
        self._config = config
        self._clock = clock
        self._rates = Rates.from_config(config)
        self._policy = make_policy(config.policy, random)
        self._index = make_index()
        self._book = LoadBook()
        self._audit = Audit()
        self._receipts = ReceiptRing(config.decisions_kept)
        self._workers: dict[WorkerId, _Worker] = {}
        self._pool = PoolView(0, {})
        self._open: dict[DecisionId, _Open] = {}
        self._awaited: set[WorkerId] = set()
        self._warm_at = float("-inf")
        self._counts = Counts()

    # The workers' channel

    def push(self, msg: WorkerPush) -> PushReply:
        """Take in one message of a worker. Its lifecycle events count even where its residency does not.

        Raises:
            ContractRefused: the message registers a worker that cannot be served.
        """
        self._counts.pushes += 1
        try:
            reply = self._apply(msg)
        finally:
            for event in msg.lifecycle:
                self._follow(event, msg)
        if msg.leaving:
            self.forget(msg.worker)
        return reply

    def _apply(self, msg: WorkerPush) -> PushReply:
        known = self._workers.get(msg.worker)
        if msg.leaving:
            return PushReply(self.epoch, msg.seq)
        if known is not None:
            known.heard_at = self._clock()
        if known is None or known.epoch != msg.epoch:
            return self._register(msg) if msg.table else self._ask_table(-1)
        if msg.seq <= known.applied_seq:
            self._counts.duplicates += 1
            return PushReply(self.epoch, known.applied_seq)
        if msg.table:
            return self._register(msg)
        if msg.seq > known.applied_seq + 1:
            return self._ask_table(known.applied_seq)
        for delta in msg.deltas:
            self._index.apply(msg.worker, delta)
        return self._advance(known, msg)

    def _ask_table(self, applied_seq: int) -> PushReply:
        self._counts.gaps += 1
        return PushReply(self.epoch, applied_seq, "table")

    def _register(self, msg: WorkerPush) -> PushReply:
        try:
            contract = check_contract(msg)
        except ContractRefused:
            self.forget(msg.worker)
            raise
        known = self._workers.get(msg.worker)
        if known is None or known.epoch != msg.epoch:
            self._index.drop_expected_of(msg.worker)
        self._index.replace(msg.worker, msg.deltas)
        worker = self._workers[msg.worker] = _Worker(contract, msg.epoch, msg.seq, self._clock())
        self._counts.tables += 1
        self._awaited.discard(msg.worker)
        if known is None or known.contract != contract:
            self._pool_changed()
        return self._advance(worker, msg)

    def _advance(self, worker: _Worker, msg: WorkerPush) -> PushReply:
        worker.applied_seq = msg.seq
        worker.relay = msg.relay
        if msg.load is not None:
            worker.engine = msg.load
        return PushReply(self.epoch, msg.seq)

    def _pool_changed(self) -> None:
        contracts = {worker: record.contract for worker, record in self._workers.items()}
        self._pool = PoolView(self._pool.version + 1, contracts)

    # The life of a request

    def _follow(self, event: LifecycleEvent, msg: WorkerPush) -> None:
        if event.kind in (LifecycleKind.END, LifecycleKind.ABORT):
            self._end(event, msg)
            return
        if event.decision_id in self._open:
            # The replica's own word on who serves; the ingress's may still be on its way.
            self.rebook(event.decision_id, msg.worker)
        self._book.renew(event.decision_id, self._clock() + self._config.lease_s)
        if event.kind is LifecycleKind.FIRST_TOKEN:
            self._book.first_token(event.decision_id)

    def _end(self, event: LifecycleEvent, msg: WorkerPush) -> None:
        ended = self._close(event.decision_id, keep_expected=event.kind is LifecycleKind.END)
        receipt = self._receipts.get(event.decision_id)
        if ended is None and receipt is not None and receipt.outcome is not None:
            return  # told twice: a relay that was asked for its table says its last words again
        agreed: bool | None = None
        if ended is not None and event.kind is LifecycleKind.END and ended.decision.worker == msg.worker:
            agreed = self._compare(ended, event, partial=msg.relay.partial)
        if receipt is not None:
            predicted = receipt.decision.predicted_cached_tokens
            outcome = Outcome(event.kind, predicted, event.cached_tokens, event.prompt_tokens, agreed)
            self._receipts.settle(event.decision_id, outcome)

    def _compare(self, ended: _Open, event: LifecycleEvent, *, partial: bool) -> bool | None:
        """Only a prediction that claims to be exact is held against the engine."""
        exact = not ended.query.reasons
        if exact:
            self._audit.compare_length(ended.decision, ended.query.layout, event)
        comparable = exact and not partial and not ended.decision.chosen.reasons
        return self._audit.compare_cached(ended.decision, event, comparable=comparable)

    def _close(self, decision_id: DecisionId, *, keep_expected: bool = False) -> _Open | None:
        """Release a decision's load and expected blocks.

        keep_expected: they stay where the worker publishes no events, as all that is known of its cache.
        """
        ended = self._open.pop(decision_id, None)
        worker = self._workers.get(ended.decision.worker) if ended is not None else None
        self._book.release(decision_id)
        if not (keep_expected and worker is not None and not worker.contract.publishes_events):
            self._index.drop_expected(decision_id)
        return ended

    # Decisions

    def decide(self, query: RouteQuery) -> Decision:
        """Select a worker, book the load on it and expect the request's blocks there.

        Raises:
            NoWorker: nobody can take it.
        """
        workers = self._eligible(query)
        self._close(query.decision_id)
        leading = self._leading(query, workers)
        scores = tuple(self._score(query, worker, leading[self._spec(worker)]) for worker in workers)
        if len(workers) == 1:
            chosen, reason = workers[0], DecisionReason.ONLY_WORKER
        else:
            chosen, reason = self._policy.choose(scores, query, _State(query, self._book, self._workers))
        decision = self._decision(query, chosen, reason, scores)
        self._book_decision(query, decision)
        self._receipts.put(decision)
        self._counts.decisions[reason] += 1
        self._counts.degraded.update(decision.degraded)
        return decision

    def _eligible(self, query: RouteQuery) -> list[WorkerId]:
        """Heard lately and not excluded; silent ones where nobody else is left."""
        workers = [worker for worker in self._workers if worker not in query.exclude]
        if not workers:
            raise NoWorker(f"no worker for {query.decision_id}: {len(self._workers)} known, all excluded")
        heard_since = self._clock() - self._config.worker_silence_s
        return [w for w in workers if self._workers[w].heard_at >= heard_since] or workers

    def _spec(self, worker: WorkerId) -> KeySpec:
        return self._workers[worker].contract.spec

    def _leading(
        self, query: RouteQuery, workers: Iterable[WorkerId]
    ) -> dict[KeySpec, dict[WorkerId, Leading]]:
        specs = {self._spec(worker) for worker in workers}
        views = {spec: query.views.get(spec) for spec in specs}
        found = {s: self._index.leading(v.key_array()) if v is not None else {} for s, v in views.items()}
        for worker in workers:
            contract = self._workers[worker].contract
            if not is_plain(contract) and worker in found[contract.spec]:
                found[contract.spec][worker] = self._leading_of_groups(query, worker, contract)
        return found

    def _leading_of_groups(self, query: RouteQuery, worker: WorkerId, contract: WorkerContract) -> Leading:
        """Where several cache groups decide, what they accept stands for the leading run."""
        view, slot = query.views[contract.spec], self._index.slot_of(worker)
        distrusted = self._audit.would_distrust(worker, query.layout)
        limit = min(
            credit(contract, query, distrusted=distrusted).max_blocks,
            (query.num_tokens - 1) // contract.block_size,
        )
        if slot is None or limit <= 0:
            return Leading()
        keys = view.key_array()[:limit]
        presence = [self._index.presence(keys, group)[slot] for group in range(len(contract.kv_groups))]
        held = cached_tokens(contract, presence, limit * contract.block_size) // contract.block_size
        match = self._index.match(keys)
        is_coming = match.expected[slot] > match.held[slot]
        return Leading(held, max(held, int(match.expected[slot])) if is_coming else held)

    def _score(
        self, query: RouteQuery, worker: WorkerId, leading: Mapping[WorkerId, Leading]
    ) -> CandidateScore:
        record = self._workers[worker]
        distrusted = self._audit.would_distrust(worker, query.layout)
        return score(
            worker,
            record.contract,
            query,
            credit=credit(record.contract, query, distrusted=distrusted),
            leading=leading.get(worker, Leading()),
            load=self._book.of(worker),
            engine=record.engine,
            rates=self._rates,
        )

    def _decision(
        self,
        query: RouteQuery,
        worker: WorkerId,
        reason: DecisionReason,
        scores: Sequence[CandidateScore],
    ) -> Decision:
        record = self._workers[worker]
        chosen = next(score for score in scores if score.worker == worker)
        return Decision(
            decision_id=query.decision_id,
            worker=worker,
            block_size=record.contract.block_size,
            reason=reason,
            candidates=tuple(scores),
            num_tokens=query.num_tokens,
            applied_seq=record.applied_seq,
            pool_version=self._pool.version,
            degraded=tuple(dict.fromkeys((*query.reasons, *chosen.reasons))),
            media=query.media,
            first_media_offset=query.first_media_offset,
        )

    def _book_decision(self, query: RouteQuery, decision: Decision) -> None:
        load = self._load_of(query, decision)
        lease = self._clock() + self._config.lease_start_s
        self._book.book(decision.decision_id, decision.worker, load, lease)
        self._expect(query, decision.worker)
        self._open[decision.decision_id] = _Open(query, decision)

    def _load_of(self, query: RouteQuery, decision: Decision) -> BookedLoad:
        chosen = decision.chosen
        cached = max(chosen.overlap_blocks, chosen.expected_blocks) * decision.block_size
        view = query.views.get(self._spec(decision.worker))
        return BookedLoad(
            prefill_tokens=query.num_tokens - cached,
            encode_tokens=encode_tokens_left(view, query.media_tokens, cached),
            keys=_keys(query, self._spec(decision.worker)),
        )

    def _expect(self, query: RouteQuery, worker: WorkerId) -> None:
        """Expect those blocks whose keys are known to be the worker's own."""
        contract = self._workers[worker].contract
        distrusted = self._audit.would_distrust(worker, query.layout)
        num_blocks = credit(contract, query, distrusted=distrusted).max_blocks
        keys = np.array(_keys(query, contract.spec)[:num_blocks], dtype=np.uint64)
        config = self._config
        ttl = config.expected_ttl_s if contract.publishes_events else config.approximate_ttl_s
        self._index.expect(worker, keys, self._clock() + ttl, query.decision_id)
        if not contract.publishes_events and contract.kv_capacity_tokens:
            self._index.trim_expected(worker, contract.kv_capacity_tokens // contract.block_size)

    def cancel(self, decision_id: DecisionId) -> None:
        """Undo a decision that nobody acted on. Idempotent; an unknown one changes nothing."""
        ended = self._close(decision_id)
        if ended is not None:
            self._counts.cancelled += 1
            predicted = ended.decision.predicted_cached_tokens
            self._receipts.settle(decision_id, Outcome(LifecycleKind.ABORT, predicted))

    def rebook(self, decision_id: DecisionId, worker: WorkerId) -> None:
        """Another worker than the decided one serves: its booking and expected blocks go there.

        What is predicted for it is what the decision had found for it as a candidate. Idempotent; an
        unknown decision changes nothing. Where the pool does not know `worker`, the load is released.
        """
        opened, receipt = self._open.get(decision_id), self._receipts.get(decision_id)
        kept = opened.decision if opened is not None else receipt.decision if receipt is not None else None
        if kept is None or kept.worker == worker:
            return
        decision = self._fell_open(kept, worker, opened)
        self._counts.rebooked += 1
        self._receipts.amend(decision)
        if opened is None:
            return
        if worker not in self._workers:
            self._close(decision_id)
            return
        self._open[decision_id] = _Open(opened.query, decision)
        self._book.move(decision_id, worker, self._load_of(opened.query, decision))
        self._expect(opened.query, worker)

    def _fell_open(self, kept: Decision, worker: WorkerId, opened: _Open | None) -> Decision:
        scored = next((c for c in kept.candidates if c.worker == worker), None)
        candidates = kept.candidates
        if scored is None:
            scored = self._late_score(kept, worker, opened)
            candidates = (*candidates, scored)
        record = self._workers.get(worker)
        query_reasons = opened.query.reasons if opened is not None else kept.degraded
        return replace(
            kept,
            worker=worker,
            block_size=record.contract.block_size if record is not None else kept.block_size,
            reason=DecisionReason.FELL_OPEN,
            candidates=candidates,
            applied_seq=record.applied_seq if record is not None else -1,
            degraded=tuple(dict.fromkeys((*query_reasons, *scored.reasons))),
        )

    def _late_score(self, kept: Decision, worker: WorkerId, opened: _Open | None) -> CandidateScore:
        """For a worker that was no candidate: it was excluded, or joined since."""
        if opened is not None and worker in self._workers:
            leading = self._leading(opened.query, [worker])
            return self._score(opened.query, worker, leading[self._spec(worker)])
        return CandidateScore(
            worker=worker,
            overlap_blocks=0,
            expected_blocks=0,
            total_blocks=kept.num_tokens // kept.block_size,
            media_overlap_blocks=0,
            media_total_blocks=kept.chosen.media_total_blocks,
            wait_ms=0.0,
            encode_ms=0.0,
            prefill_ms=0.0,
            pressure_ms=0.0,
            reasons=(DegradeReason.CONTRACT_MISSING,),
        )

    # The pool and time

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone: its blocks, its bookings and its audit. Idempotent."""
        self._awaited.discard(worker)
        if self._workers.pop(worker, None) is None:
            return
        for decision_id in self._book.drop_worker(worker):
            del self._open[decision_id]
        self._index.forget(worker)
        self._audit.forget(worker)
        self._pool_changed()

    def sweep(self) -> None:
        """Release what is overdue: leases, expected blocks, workers that fell silent."""
        now = self._clock()
        for decision_id in self._book.sweep(now):
            self._close(decision_id)
            self._counts.expired_leases += 1
        self._index.sweep(now)
        forget_before = now - _SILENCES_UNTIL_FORGOTTEN * self._config.worker_silence_s
        for worker in [w for w, record in self._workers.items() if record.heard_at < forget_before]:
            self.forget(worker)

    def begin_warm(self, roster: Iterable[WorkerId]) -> None:
        """Wait for the tables of the workers on `roster`, for `warm_timeout_s` at most."""
        self._awaited = set(roster) - self._workers.keys()
        self._warm_at = self._clock() + self._config.warm_timeout_s

    def is_warm(self) -> bool:
        return not self._awaited or self._clock() >= self._warm_at

    def late_workers(self) -> tuple[WorkerId, ...]:
        """Those on the roster whose tables have not come yet."""
        return tuple(sorted(self._awaited))

    # Questions

    def pool(self) -> PoolView:
        return self._pool

    def receipt(self, decision_id: DecisionId) -> Receipt | None:
        return self._receipts.get(decision_id)

    def held_keys(self, worker: WorkerId) -> npt.NDArray[np.uint64]:
        """Every block that `worker` is known to hold, by key, ascending: for audits."""
        return self._index.held_keys(worker)

    def workers(self) -> tuple[WorkerStatus, ...]:
        return tuple(self._status(worker, record) for worker, record in sorted(self._workers.items()))

    def _status(self, worker: WorkerId, record: _Worker) -> WorkerStatus:
        load, audit = self._book.of(worker), self._audit.of(worker)
        return WorkerStatus(
            worker=worker,
            contract=record.contract,
            epoch=record.epoch,
            applied_seq=record.applied_seq,
            relay=record.relay,
            load=load,
            engine=record.engine,
            num_blocks=self._index.num_blocks(worker),
            expected_blocks=self._index.num_expected(worker),
            idle=record.relay.idle and not load.active_requests,
            silent_s=self._clock() - record.heard_at,
            audit=audit,
            families=family_statuses(record.contract, audit),
            reasons=worker_reasons(record.contract, audit),
        )

    def stats(self) -> CoreStats:
        held = Holdings(len(self._open), len(self._receipts), self._index.stats())
        return self._counts.stats(held)

    def check_integrity(self) -> None:
        """Raise AssertionError where index, bookings and open decisions contradict each other."""
        self._index.check_integrity()
        self._book.check_integrity()
        assert len(self._open) == len(self._book), "bookings without an open decision, or the reverse"
        for decision_id, opened in self._open.items():
            assert self._book.worker_of(decision_id) == opened.decision.worker, (
                f"{decision_id}: booked elsewhere"
            )
            assert opened.decision.worker in self._workers, f"{decision_id}: booked on a lost worker"
        assert set(self._pool.contracts) == set(self._workers), "the pool view is stale"
        assert self._index.workers() == set(self._workers), "the index knows other workers"


def _keys(query: RouteQuery, spec: KeySpec) -> tuple[int, ...]:
    view = query.views.get(spec)
    return tuple(view.key_array().tolist()) if view is not None else ()
