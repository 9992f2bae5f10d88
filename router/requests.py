"""The life of a request in the router: decided and booked, perhaps moved, ended, compared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from router.audit import Audit
from router.bookings import Bookings, OpenRequest
from router.comparison import Comparison
from router.config import RouterConfig
from router.cost import Weights
from router.encoders import EncoderCaches
from router.fleet import Fleet, Member
from router.index import BlockIndex
from router.load import LoadBook
from router.moving import fell_open, find_candidate
from router.receipts import Outcome, ReceiptRing
from router.scorer import Scorer
from router.selection import Selector
from router.sessions import Sessions
from router.status import Counts
from sightline_types import (
    Decision,
    DecisionId,
    LifecycleEvent,
    LifecycleKind,
    RouteQuery,
    WorkerId,
)

__all__ = ["Requests"]

#: Requests without a decision whose beginning is remembered, for a decision that comes late.
_MAX_EARLY = 4096
_MEAN_GAIN = 0.05
_OVER = (LifecycleKind.END, LifecycleKind.ABORT)


@dataclass(frozen=True, slots=True)
class _Early:
    """The last word on a request that nobody has decided (yet)."""

    event: LifecycleEvent
    worker: WorkerId


class Requests:
    """Open requests, from the question to the engine's last word."""

    def __init__(
        self, config: RouterConfig, fleet: Fleet, index: BlockIndex, audit: Audit, counts: Counts,
        *, clock: Callable[[], float], random: Random,
    ) -> None:  # fmt: skip
        self._config = config
        self._fleet = fleet
        self._counts = counts
        self._clock = clock
        self.encoders = EncoderCaches()
        self.book = LoadBook(fleet.table)
        self.receipts = ReceiptRing(config.receipts_memory_bytes)
        self.sessions = Sessions(config.sessions_kept, config.session_ttl_s)
        weights = Weights.from_config(config)
        self._scorer = Scorer(fleet, index, audit, self.encoders, self.book, weights)
        self._selector = Selector(
            config, fleet, self._scorer, self.book, self.sessions, counts, clock=clock, random=random
        )
        self._bookings = Bookings(config, fleet, index, self.book, self.encoders)
        self._comparison = Comparison(config, fleet, audit)
        self._early: OrderedDict[DecisionId, _Early] = OrderedDict()
        self._mean_prompt_tokens = 0.0

    def __len__(self) -> int:
        return len(self._bookings)

    def configure(self, config: RouterConfig) -> None:
        """Live settings; nothing that is known or booked is lost."""
        self._config = config
        for part in (self._selector, self._bookings, self._comparison):
            part.configure(config)
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
        self._bookings.close(query.decision_id)
        decision, chosen = self._selector.select(query)
        early = self._early.pop(query.decision_id, None)
        opened = OpenRequest(query, decision, chosen, is_late=early is not None)
        self._count(opened)
        self.receipts.put(decision)
        if early is None:
            self._begin(opened)
        else:
            self._catch_up(opened, early)
        return decision

    def _count(self, opened: OpenRequest) -> None:
        decision, counts = opened.decision, self._counts
        counts.decisions[decision.reason] += 1
        for reason in decision.degraded:
            counts.degraded[reason] += 1
        counts.late_decisions += opened.is_late
        counts.prompt_tokens += decision.num_tokens
        counts.predicted_tokens += opened.row.predicted_tokens
        counts.regret_tokens += decision.regret_tokens

    def _begin(self, opened: OpenRequest) -> None:
        now = self._clock()
        load = self._bookings.begin(opened, now)
        self.sessions.settle(opened.query.hints.session, opened.decision.worker, now)
        self._mean_prompt_tokens += _MEAN_GAIN * (load.prefill_tokens - self._mean_prompt_tokens)

    def _catch_up(self, opened: OpenRequest, early: _Early) -> None:
        """The request had begun before it was decided: with one worker nothing waits for the decision."""
        event = early.event
        if event.kind in _OVER:
            predicted = opened.row.predicted_tokens
            self.receipts.settle(event.decision_id, _outcome(event, predicted, None))
            return
        self._begin(opened)
        self.report(event, early.worker, is_partial=False)

    def cancel(self, decision_id: DecisionId) -> None:
        """Undo a decision that nobody acted on. Idempotent; an unknown one changes nothing."""
        ended = self._bookings.close(decision_id)
        if ended is not None:
            self._counts.cancelled += 1
            outcome = Outcome(LifecycleKind.ABORT, ended.row.predicted_tokens)
            self.receipts.settle(decision_id, outcome)

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
        opened, receipt = self._bookings.get(decision_id), self.receipts.get(decision_id)
        kept = opened.decision if opened is not None else receipt.decision if receipt is not None else None
        if kept is None or kept.worker == worker:
            return
        query, member = opened.query if opened is not None else None, self._fleet.get(worker)
        table, row = find_candidate(kept, worker, member, query, self._scorer)
        decision = fell_open(kept, worker, member, query, table, row)
        self._counts.rebooked += 1
        self.receipts.amend(decision)
        if opened is None:
            return
        if member is None:
            self._bookings.close(decision_id)
            return
        now = self._clock()
        moved = OpenRequest(opened.query, decision, table.row(row), is_late=opened.is_late)
        self._bookings.move(moved, now)
        self.sessions.settle(moved.query.hints.session, worker, now)

    # What the replicas report

    def report(self, event: LifecycleEvent, worker: WorkerId, *, is_partial: bool) -> None:
        """is_partial: the worker's events were lost for a while, so that its blocks are not all known."""
        decision_id = event.decision_id
        if decision_id not in self._bookings and self.receipts.get(decision_id) is None:
            self._remember(event, worker)
        elif event.kind in _OVER:
            self._end(event, worker, is_partial=is_partial)
        else:
            # The replica's own word on who serves; the ingress's may still be on its way.
            if decision_id in self._bookings:
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
        ended = self._bookings.close(event.decision_id, keep_expected=has_ended)
        receipt = self.receipts.get(event.decision_id)
        if ended is None and receipt is not None and receipt.outcome is not None:
            return  # told twice: a relay that was asked for its table says its last words again
        agreed: bool | None = None
        if ended is not None and has_ended and ended.decision.worker == worker:
            agreed = self._comparison.compare(ended, event, is_partial=is_partial)
            if was_alone:
                self._comparison.learn(ended, event, self._clock())
        if receipt is not None:
            # The row has it; a decision looks for it among its candidates, which are made into objects then.
            predicted = ended.row.predicted_tokens if ended else receipt.decision.predicted_cached_tokens
            self.receipts.settle(event.decision_id, _outcome(event, predicted, agreed))

    # Time, and workers that go

    def drop_worker(self, member: Member) -> None:
        """The worker is gone, and its bookings with it."""
        for decision_id in self.book.drop_slot(member.slot):
            self._bookings.close(decision_id)
        self.encoders.close(member.slot)
        self.sessions.forget(member.worker)

    def sweep(self, now: float) -> None:
        """Release what is overdue, and what the engine's own word contradicts."""
        for decision_id in self.book.sweep(now):
            self._bookings.close(decision_id)
            self._counts.expired_leases += 1
        for member in self._fleet.members.values():
            if member.relay.idle:
                self._reconcile(member, now - self._config.reconcile_after_s)
        self._scorer.weights = self._weights()

    def _reconcile(self, member: Member, before: float) -> None:
        """Its replica says that nothing runs: what it started long ago has ended without a word."""
        for decision_id in self.book.started_before(member.slot, before):
            self._bookings.close(decision_id)
            self._counts.reconciled += 1

    def check_integrity(self) -> None:
        """Raise AssertionError where bookings and open decisions contradict each other."""
        self._bookings.check_integrity()
        self.receipts.check_integrity()


def _outcome(event: LifecycleEvent, predicted: int, agreed: bool | None) -> Outcome:
    return Outcome(
        event.kind, predicted, event.cached_tokens, event.prompt_tokens, agreed, event.first_token_ms
    )
