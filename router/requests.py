"""The life of a request in the router: decided and booked, perhaps moved, ended, compared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import numpy.typing as npt

from router.admission import Overloaded, admit
from router.audit import Audit, Prediction, Verdict
from router.candidates import CandidateTable
from router.config import RouterConfig
from router.cost import Weights
from router.encoders import EncoderCaches
from router.fleet import Fleet, Member, Slots
from router.index import BlockIndex, KeyArray
from router.load import BookedLoad, LoadBook
from router.policies import Choice, Contest, make_policy
from router.rates import Observation
from router.receipts import Outcome, ReceiptRing
from router.scorer import Scorer
from router.sessions import Sessions
from router.status import Counts
from sightline_types import (
    Decision,
    DecisionId,
    DecisionReason,
    DegradeReason,
    LifecycleEvent,
    LifecycleKind,
    RouteQuery,
    WorkerId,
)

__all__ = ["Requests"]

#: Requests without a decision whose beginning is remembered, for a decision that comes late.
_MAX_EARLY = 4096
_MEAN_GAIN = 0.05
_DISTRUST = (DegradeReason.LENGTH_DISTRUST, DegradeReason.CACHED_DISTRUST)
_OVER = (LifecycleKind.END, LifecycleKind.ABORT)


@dataclass(slots=True)
class _Open:
    """A decision whose request has not ended.

    is_late: it was made after the request had begun, so that it may have seen the request's own blocks.
    """

    query: RouteQuery
    decision: Decision
    table: CandidateTable
    row: int
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class _Early:
    """The last word on a request that nobody has decided (yet)."""

    event: LifecycleEvent
    worker: WorkerId


class Requests:
    """Open requests, and everything that is booked for them."""

    def __init__(
        self, config: RouterConfig, fleet: Fleet, index: BlockIndex, audit: Audit, counts: Counts,
        *, clock: Callable[[], float], random: Random,
    ) -> None:  # fmt: skip
        self._config = config
        self._fleet = fleet
        self._index = index
        self._audit = audit
        self._counts = counts
        self._clock = clock
        self._random = random
        self._policy = make_policy(config, random)
        self.encoders = EncoderCaches()
        self.book = LoadBook(fleet.table)
        self.receipts = ReceiptRing(config.receipts_memory_bytes)
        self.sessions = Sessions(config.sessions_kept, config.session_ttl_s)
        self._scorer = Scorer(fleet, index, audit, self.encoders, Weights.from_config(config))
        self._open: dict[DecisionId, _Open] = {}
        self._early: OrderedDict[DecisionId, _Early] = OrderedDict()
        self._mean_prompt_tokens = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def configure(self, config: RouterConfig) -> None:
        """Live settings; nothing that is known or booked is lost."""
        old, self._config = self._config, config
        if (old.policy, old.temperature_ms) != (config.policy, config.temperature_ms):
            self._policy = make_policy(config, self._random)
        self._scorer.weights = self._weights()
        self.receipts.limit_bytes = config.receipts_memory_bytes
        self.sessions.capacity, self.sessions.ttl_s = config.sessions_kept, config.session_ttl_s

    def _weights(self) -> Weights:
        weights = Weights.from_config(self._config)
        return weights._replace(strange_prompt_tokens=self._mean_prompt_tokens)

    # Deciding

    def decide(self, query: RouteQuery) -> Decision:
        """Select a worker, book the load on it and expect the request's blocks there.

        Raises:
            NoWorker: nobody can take it.
            UnknownWorker: it is pinned to a worker that is not here.
            Overloaded: the admission limits refuse it.
        """
        self._close(query.decision_id)
        slots, forced = self._candidates(query)
        table = self._scorer.table(query, slots)
        row, reason = self._choose(query, table, forced)
        table = table.take(_ranked(table, row))
        early = self._early.pop(query.decision_id, None)
        opened = _Open(query, self._decision(query, table, reason), table, 0, is_late=early is not None)
        self._count(opened)
        self.receipts.put(opened.decision)
        if early is None:
            self._begin(opened)
        else:
            self._catch_up(opened, early)
        return opened.decision

    def _candidates(self, query: RouteQuery) -> tuple[Slots, DecisionReason | None]:
        """Who may take it; and why it is them, where a hint says so."""
        hints, now = query.hints, self._clock()
        if hints.worker is not None:
            return self._admitted(query, self._fleet.named(hints.worker)), DecisionReason.PINNED
        slots = self._fleet.eligible(query.exclude, now - self._config.worker_silence_s)
        home = self._home(query) if hints.is_session_hard else None
        if home is not None and home.slot in slots:
            mine = np.array([home.slot], dtype=np.intp)
            return self._admitted(query, mine), DecisionReason.SESSION
        return self._admitted(query, slots), None

    def _admitted(self, query: RouteQuery, slots: Slots) -> Slots:
        limits = self._config.admission
        if not limits.is_limited:
            return slots
        try:
            return slots[admit(limits, self._fleet.table.rows[slots], query.hints.priority)]
        except Overloaded:
            self._counts.overloaded += 1
            raise

    def _home(self, query: RouteQuery) -> Member | None:
        home = self.sessions.home(query.hints.session, self._clock())
        return self._fleet.get(home) if home is not None else None

    def _choose(self, query: RouteQuery, table: CandidateTable, forced: DecisionReason | None) -> Choice:
        self._favour_home(query, table)
        if len(table) == 1:
            return 0, forced or DecisionReason.ONLY_WORKER
        rows = table.rows
        slots = rows["slot"]
        contest = Contest(
            rows=rows,
            workers=table.workers,
            loads=self._fleet.table.rows[slots],
            num_tokens=query.num_tokens,
            tie_key=query.tie_key,
            added_blocks=lambda: self._added_blocks(query, slots),
        )
        row, reason = self._policy.choose(contest)
        return row, forced or reason

    def _favour_home(self, query: RouteQuery, table: CandidateTable) -> None:
        home = self._home(query) if query.hints.session is not None else None
        row = table.row_of(home.worker) if home is not None else None
        if row is not None:
            table.rows["session_ms"][row] = -self._config.session_bonus_ms
            table.rows["cost_ms"][row] -= self._config.session_bonus_ms

    def _added_blocks(self, query: RouteQuery, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        added = np.zeros(len(slots), dtype=np.int32)
        for view in query.views.values():
            by_slot = self.book.would_add(view.key_array())
            mine = [query.views.get(self._fleet.at(slot).contract.spec) is view for slot in slots.tolist()]
            added = np.where(mine, by_slot[slots], added)
        return added

    def _decision(self, query: RouteQuery, table: CandidateTable, reason: DecisionReason) -> Decision:
        """Of a table whose first row was chosen."""
        rows, worker = table.rows, table.worker(0)
        member = self._fleet.members[worker]
        held = rows["overlap"] * rows["block_size"]
        return Decision(
            decision_id=query.decision_id,
            worker=worker,
            block_size=member.contract.block_size,
            reason=reason,
            candidates=table,
            num_tokens=query.num_tokens,
            applied_seq=member.applied_seq,
            pool_version=self._fleet.pool.version,
            degraded=tuple(dict.fromkeys((*query.reasons, *table.reasons(0)))),
            media=query.media,
            first_media_offset=query.first_media_offset,
            regret_tokens=int(held.max() - held[0]),
        )

    def _count(self, opened: _Open) -> None:
        decision, counts = opened.decision, self._counts
        counts.decisions[decision.reason] += 1
        counts.degraded.update(decision.degraded)
        counts.late_decisions += opened.is_late
        counts.prompt_tokens += decision.num_tokens
        counts.predicted_tokens += int(opened.table.rows["overlap"][0]) * decision.block_size
        counts.regret_tokens += decision.regret_tokens

    # Booking

    def _begin(self, opened: _Open) -> None:
        query, now = opened.query, self._clock()
        load = self._load_of(opened)
        slot = int(opened.table.rows["slot"][opened.row])
        self.book.book(query.decision_id, slot, load, now + self._config.lease_start_s, now)
        self._expect(opened)
        self._open[query.decision_id] = opened
        self.sessions.settle(query.hints.session, opened.decision.worker, now)
        self._mean_prompt_tokens += _MEAN_GAIN * (load.prefill_tokens - self._mean_prompt_tokens)

    def _catch_up(self, opened: _Open, early: _Early) -> None:
        """The request had begun before it was decided: with one worker nothing waits for the decision."""
        event = early.event
        if event.kind in _OVER:
            predicted = opened.decision.predicted_cached_tokens
            self.receipts.settle(event.decision_id, _outcome(event, predicted, None))
            return
        self._begin(opened)
        self.report(event, early.worker, is_partial=False)

    def _load_of(self, opened: _Open) -> BookedLoad:
        row = opened.table.rows[opened.row]
        cached = max(int(row["overlap"]), int(row["expected"])) * int(row["block_size"])
        return BookedLoad(
            prefill_tokens=max(0, opened.query.num_tokens - cached),
            encode_tokens=int(row["encode_tokens"]),
            keys=self._keys(opened),
        )

    def _keys(self, opened: _Open) -> KeyArray:
        member = self._fleet.get(opened.decision.worker)
        view = opened.query.views.get(member.contract.spec) if member is not None else None
        return view.key_array() if view is not None else np.empty(0, dtype=np.uint64)

    def _expect(self, opened: _Open) -> None:
        """Expect those blocks whose keys are known to be the worker's own, and the media it encodes."""
        row = opened.table.rows[opened.row]
        member = self._fleet.at(int(row["slot"]))
        config, decision_id = self._config, opened.query.decision_id
        ttl = config.expected_ttl_s if row["has_events"] else config.approximate_ttl_s
        keys = self._keys(opened)[: int(row["credit_blocks"])]
        self._index.expect(member.worker, keys, self._clock() + ttl, decision_id)
        if not row["has_events"]:
            tokens = member.contract.kv_capacity_tokens or config.approximate_capacity_tokens
            self._index.trim_expected(member.worker, tokens // member.contract.block_size)
        cached = max(int(row["overlap"]), int(row["expected"])) * int(row["block_size"])
        left = tuple(span for span in opened.query.spans if span.end > cached)
        self.encoders.expect(decision_id, member.slot, left)

    def _close(self, decision_id: DecisionId, *, keep_expected: bool = False) -> _Open | None:
        """Release a decision's load and expected blocks.

        keep_expected: they stay where the worker's events are not followed, as all that is known of its
        cache.
        """
        ended = self._open.pop(decision_id, None)
        self.book.release(decision_id)
        self.encoders.drop(decision_id)
        if not (keep_expected and ended is not None and not ended.table.rows["has_events"][ended.row]):
            self._index.drop_expected(decision_id)
        return ended

    def cancel(self, decision_id: DecisionId) -> None:
        """Undo a decision that nobody acted on. Idempotent; an unknown one changes nothing."""
        ended = self._close(decision_id)
        if ended is not None:
            self._counts.cancelled += 1
            predicted = ended.decision.predicted_cached_tokens
            self.receipts.settle(decision_id, Outcome(LifecycleKind.ABORT, predicted))

    def renew(self, decision_id: DecisionId, *, started: bool) -> None:
        """A sign of life: of the replica that serves it (started), or of the ingress that waits for one."""
        lease = self._config.lease_s if started else self._config.lease_start_s
        self.book.renew(decision_id, self._clock() + lease, started=started)

    # Moving

    def rebook(self, decision_id: DecisionId, worker: WorkerId) -> None:
        """Another worker than the decided one serves: its booking and expected blocks go there.

        What is predicted for it is what the decision had found for it as a candidate. Idempotent; an
        unknown decision changes nothing. Where the pool does not know `worker`, the load is released.
        """
        opened, receipt = self._open.get(decision_id), self.receipts.get(decision_id)
        kept = opened.decision if opened is not None else receipt.decision if receipt is not None else None
        if kept is None or kept.worker == worker:
            return
        table, row = self._found_for(kept, worker, opened)
        decision = self._fell_open(kept, worker, table, row, opened)
        self._counts.rebooked += 1
        self.receipts.amend(decision)
        if opened is None:
            return
        if self._fleet.get(worker) is None:
            self._close(decision_id)
            return
        moved = _Open(opened.query, decision, table, row, is_late=opened.is_late)
        self._open[decision_id] = moved
        self.book.move(decision_id, int(table.rows["slot"][row]), self._load_of(moved))
        self._expect(moved)
        self.sessions.settle(moved.query.hints.session, worker, self._clock())

    def _found_for(
        self, kept: Decision, worker: WorkerId, opened: _Open | None
    ) -> tuple[CandidateTable, int]:
        """What the decision found for `worker`; scored now where it was no candidate: it was excluded, or
        joined since."""
        table = kept.candidates
        assert isinstance(table, CandidateTable)
        row, member = table.row_of(worker), self._fleet.get(worker)
        if row is not None and (member is None or table.rows["slot"][row] == member.slot):
            return table, row
        if opened is not None and member is not None:
            late = self._scorer.table(opened.query, np.array([member.slot], dtype=np.intp))
        else:
            total, media = kept.num_tokens // kept.block_size, int(table.rows["media_total"][0])
            late = CandidateTable.of_stranger(worker, total, media, kept.block_size)
        return table.joined(late), len(table)

    def _fell_open(
        self, kept: Decision, worker: WorkerId, table: CandidateTable, row: int, opened: _Open | None
    ) -> Decision:
        member = self._fleet.get(worker)
        query_reasons = opened.query.reasons if opened is not None else kept.degraded
        held = table.rows["overlap"] * table.rows["block_size"]
        return replace(
            kept,
            worker=worker,
            block_size=member.contract.block_size if member is not None else kept.block_size,
            reason=DecisionReason.FELL_OPEN,
            candidates=table,
            applied_seq=member.applied_seq if member is not None else -1,
            degraded=tuple(dict.fromkeys((*query_reasons, *table.reasons(row)))),
            regret_tokens=int(held.max() - held[row]),
        )

    # What the replicas report

    def report(self, event: LifecycleEvent, worker: WorkerId, *, is_partial: bool) -> None:
        """is_partial: the worker's events were lost for a while, so that its blocks are not all known."""
        decision_id = event.decision_id
        if decision_id not in self._open and self.receipts.get(decision_id) is None:
            self._remember(event, worker)
        elif event.kind in _OVER:
            self._end(event, worker, is_partial=is_partial)
        else:
            # The replica's own word on who serves; the ingress's may still be on its way.
            if decision_id in self._open:
                self.rebook(decision_id, worker)
            self.renew(decision_id, started=True)
            if event.kind is LifecycleKind.FIRST_TOKEN:
                self.book.first_token(decision_id)
                self.encoders.confirm(decision_id)

    def _remember(self, event: LifecycleEvent, worker: WorkerId) -> None:
        self._early[event.decision_id] = _Early(event, worker)
        while len(self._early) > _MAX_EARLY:
            self._early.popitem(last=False)

    def _end(self, event: LifecycleEvent, worker: WorkerId, *, is_partial: bool) -> None:
        was_alone = self.book.was_alone(event.decision_id)
        has_ended = event.kind is LifecycleKind.END
        if has_ended:
            self.encoders.confirm(event.decision_id)
        ended = self._close(event.decision_id, keep_expected=has_ended)
        receipt = self.receipts.get(event.decision_id)
        if ended is None and receipt is not None and receipt.outcome is not None:
            return  # told twice: a relay that was asked for its table says its last words again
        agreed: bool | None = None
        if ended is not None and has_ended and ended.decision.worker == worker:
            agreed = self._compare(ended, event, is_partial=is_partial)
            if was_alone:
                self._learn(ended, event)
        if receipt is not None:
            predicted = receipt.decision.predicted_cached_tokens
            self.receipts.settle(event.decision_id, _outcome(event, predicted, agreed))

    def _compare(self, ended: _Open, event: LifecycleEvent, *, is_partial: bool) -> bool | None:
        """Only a prediction that claims to be exact is held against the engine; one without credit for
        want of trust is, too, as what it would have been."""
        decision, layout = ended.decision, ended.query.layout
        worker = decision.worker
        is_exact = not ended.query.reasons
        if is_exact and event.prompt_tokens is not None:
            self._audit.compare_length(
                worker, layout, decision.decision_id, decision.num_tokens, event.prompt_tokens
            )
        doubts = [reason for reason in ended.table.reasons(ended.row) if reason not in _DISTRUST]
        member = self._fleet.get(worker)
        comparable = is_exact and event.comparable and not (is_partial or doubts or ended.is_late)
        if not comparable or member is None or event.cached_tokens is None:
            self._audit.skip(worker, layout)
            return None
        predicted = _prediction(ended)
        verdict = self._audit.compare_cached(
            worker,
            layout,
            predicted,
            event.cached_tokens,
            is_explained=self._is_explained(ended, member, predicted, event.cached_tokens),
        )
        return verdict is Verdict.AGREED if verdict in (Verdict.AGREED, Verdict.DIFFERED) else None

    def _is_explained(self, ended: _Open, member: Member, predicted: Prediction, reported: int) -> bool:
        nearest = predicted.nearest(reported)
        if nearest == reported:
            return False
        size = ended.decision.block_size
        # Rounded away from the prediction: a figure between two block ends needs the block it cuts.
        blocks = -(-reported // size) if reported > nearest else reported // size
        since, keys = ended.decision.applied_seq, self._keys(ended)
        return member.changes.may_explain(since, keys, nearest // size, blocks)

    def _learn(self, ended: _Open, event: LifecycleEvent) -> None:
        """How fast the worker is, from a request that had its prefill to itself."""
        member = self._fleet.get(ended.decision.worker)
        if event.first_token_ms is None or event.cached_tokens is None or member is None:
            return
        n = event.prompt_tokens or ended.query.num_tokens
        squares = (n * n - event.cached_tokens**2) / 1e6
        seen = Observation(
            elapsed_ms=event.first_token_ms,
            prefill_tokens=n - event.cached_tokens,
            encode_tokens=int(ended.table.rows["encode_tokens"][ended.row]),
            attention_ms=self._config.attention_ms_per_kilotoken2 * squares,
        )
        member.rates.learn(seen, self._clock(), self._config)

    # Time, and workers that go

    def drop_worker(self, member: Member) -> None:
        """The worker is gone, and its bookings with it."""
        for decision_id in self.book.drop_slot(member.slot):
            self._close(decision_id)
        self.encoders.close(member.slot)
        self.sessions.forget(member.worker)

    def sweep(self, now: float) -> None:
        """Release what is overdue, and what the engine's own word contradicts."""
        for decision_id in self.book.sweep(now):
            self._close(decision_id)
            self._counts.expired_leases += 1
        for member in self._fleet.members.values():
            if member.relay.idle:
                self._reconcile(member, now - self._config.reconcile_after_s)
        self._scorer.weights = self._weights()

    def _reconcile(self, member: Member, before: float) -> None:
        """Its replica says that nothing runs: what it started long ago has ended without a word."""
        for decision_id in self.book.started_before(member.slot, before):
            self._close(decision_id)
            self._counts.reconciled += 1

    def check_integrity(self) -> None:
        """Raise AssertionError where bookings and open decisions contradict each other."""
        self.book.check_integrity()
        self.encoders.check_integrity()
        self.receipts.check_integrity()
        assert len(self._open) == len(self.book), "bookings without an open decision, or the reverse"
        for decision_id, opened in self._open.items():
            member = self._fleet.get(opened.decision.worker)
            assert member is not None, f"{decision_id}: booked on a lost worker"
            assert self.book.slot_of(decision_id) == member.slot, f"{decision_id}: booked elsewhere"


def _ranked(table: CandidateTable, chosen: int) -> npt.NDArray[np.intp]:
    """The order of a decision's candidates: the chosen one, then the others, cheapest first."""
    order = np.argsort(table.rows["cost_ms"], kind="stable")
    return np.concatenate([[chosen], order[order != chosen]])


def _prediction(ended: _Open) -> Prediction:
    """The shadow columns are the plain ones where the worker is trusted."""
    row = ended.table.rows[ended.row]
    size = int(row["block_size"])
    least, most = int(row["shadow"]), int(row["shadow_expected"])
    return Prediction(ended.decision.decision_id, least * size, max(least, most) * size)


def _outcome(event: LifecycleEvent, predicted: int, agreed: bool | None) -> Outcome:
    return Outcome(
        event.kind, predicted, event.cached_tokens, event.prompt_tokens, agreed, event.first_token_ms
    )
