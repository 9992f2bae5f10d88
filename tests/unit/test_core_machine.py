"""Any history of pushes, gaps, restarts, decisions and lifecycle, against a naive model of the router."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router import NoWorker, RouterConfig, RouterCore
from sightline_types import (
    DecisionId,
    DecisionReason,
    KeyedView,
    KeyScheme,
    KeySpec,
    LayoutContract,
    LifecycleEvent,
    LifecycleKind,
    MediaId,
    MediaSpan,
    RelayStatus,
    RouteHints,
    RouteQuery,
    Tier,
    TierDelta,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

BLOCK = 4
SPEC = KeySpec(KeyScheme.VLLM, BLOCK)
WORKERS = [WorkerId(name) for name in "abc"]
QUIET_WORKER = WORKERS[2]
CONFIG = RouterConfig(
    expected_ttl_s=5,
    approximate_ttl_s=9,
    lease_start_s=4,
    lease_s=12,
    worker_silence_s=10,
    encoder_cache_tokens=6,
    trust_after_agreements=2,
)
LAYOUT = LayoutContract("family", "f", exact=True)


@dataclass
class NaiveWorker:
    epoch: int
    applied: int
    heard_at: float
    held: set[int] = field(default_factory=set)


@dataclass
class NaiveRequest:
    worker: WorkerId
    keys: list[int]
    num_tokens: int
    expires_at: float
    prefilled: bool = False
    started: bool = False


_workers = st.sampled_from(WORKERS)
_ids = st.sampled_from([DecisionId(f"d{i}") for i in range(5)])
_stored = st.sets(st.integers(1, 8), max_size=6)
# Prompts share prefixes: they are the first blocks of one of two chains.
_prompts = st.tuples(st.sampled_from([1, 5]), st.integers(0, 4), st.integers(0, BLOCK - 1))


def contract_of(worker: WorkerId) -> WorkerContract:
    events = worker != QUIET_WORKER
    return WorkerContract(
        "vllm", "0", BLOCK, KeyScheme.VLLM, "m", 99, publishes_events=events, layouts=(LAYOUT,)
    )


def delta(stored: set[int], removed: set[int] = frozenset()) -> TierDelta:
    packed = (np.array(sorted(keys), dtype="<u8").tobytes() for keys in (stored, removed))
    return TierDelta(Tier(), *packed)


class CoreAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.core = RouterCore(CONFIG, clock=lambda: self.now, epoch=7, random=Random(1))
        self.first_epoch = dict.fromkeys(WORKERS, 1)
        self.workers: dict[WorkerId, NaiveWorker] = {}
        self.requests: dict[DecisionId, NaiveRequest] = {}
        self.decided: set[DecisionId] = set()
        self.early: dict[DecisionId, tuple[LifecycleKind, WorkerId]] = {}

    # The workers' channel

    @rule(worker=_workers, held=_stored, restart=st.booleans())
    def send_table(self, worker, held, restart):
        held = set() if worker == QUIET_WORKER else held
        known = self.workers.get(worker)
        epoch = known.epoch + restart if known else self.first_epoch[worker]
        seq = known.applied + 1 if known and not restart else 0
        reply = self._push(worker, epoch, seq, delta(held), table=True)
        assert (reply.need, reply.applied_seq) == ("ok", seq)
        self.workers[worker] = NaiveWorker(epoch, seq, self.now, held)

    @rule(worker=_workers, stored=_stored, removed=_stored)
    def send_next(self, worker, stored, removed):
        known = self.workers.get(worker)
        if worker == QUIET_WORKER:
            stored = set()
        removed = removed - stored
        if known is None:
            assert self._push(worker, self.first_epoch[worker], 3, delta(stored, removed)).need == "table"
            return
        reply = self._push(worker, known.epoch, known.applied + 1, delta(stored, removed))
        assert (reply.need, reply.applied_seq) == ("ok", known.applied + 1)
        known.applied += 1
        known.held = (known.held | stored) - removed
        known.heard_at = self.now

    @precondition(lambda self: self.workers)
    @rule(worker=_workers, skipped=st.integers(1, 3), stored=_stored)
    def send_after_a_gap(self, worker, skipped, stored):
        known = self.workers.get(worker)
        if known is not None:
            reply = self._push(worker, known.epoch, known.applied + 1 + skipped, delta(stored))
            assert (reply.need, reply.applied_seq) == ("table", known.applied)
            known.heard_at = self.now

    @precondition(lambda self: self.workers)
    @rule(worker=_workers, back=st.integers(0, 3), stored=_stored, table=st.booleans())
    def send_again(self, worker, back, stored, table):
        known = self.workers.get(worker)
        if known is not None and known.applied >= back:
            reply = self._push(worker, known.epoch, known.applied - back, delta(stored), table=table)
            assert (reply.need, reply.applied_seq) == ("ok", known.applied)
            known.heard_at = self.now

    @rule(worker=_workers)
    def leave(self, worker):
        """For good: it comes back as another, in another epoch."""
        known = self.workers.get(worker)
        epoch = known.epoch if known is not None else self.first_epoch[worker]
        self.core.push(WorkerPush(worker, epoch, 99, leaving=True))
        self.first_epoch[worker] = epoch + 1
        self._lose(worker)

    @rule(worker=_workers)
    def forget(self, worker):
        self.core.forget(worker)
        self._lose(worker)

    # Requests

    @rule(
        decision_id=_ids,
        prompt=_prompts,
        excluded=st.sets(_workers, max_size=1),
        picture=st.none() | st.integers(1, 3),
        session=st.none() | st.integers(1, 2),
        hard=st.booleans(),
    )
    def decide(self, decision_id, prompt, excluded, picture, session, hard):
        first, blocks, rest = prompt
        keys = list(range(first, first + blocks))
        num_tokens = blocks * BLOCK + rest
        query = RouteQuery(
            decision_id,
            {SPEC: keyed(keys)},
            num_tokens,
            exclude=tuple(excluded),
            hints=RouteHints(session=session, is_session_hard=hard),
        )
        if picture is not None and num_tokens:
            span = MediaSpan(0, min(num_tokens, picture * 2), MediaId(picture))
            query = replace(query, layout="f", spans=(span,), media_tokens=span.length, first_media_offset=0)
        eligible = self._eligible(excluded)
        try:
            decision = self.core.decide(query)
        except NoWorker:
            assert not eligible
            self.requests.pop(decision_id, None)
            return
        self.decided.add(decision_id)
        self.requests[decision_id] = NaiveRequest(
            decision.worker, keys, num_tokens, self.now + CONFIG.lease_start_s
        )
        self._catch_up(decision_id)
        if decision.reason is DecisionReason.SESSION:
            assert hard and decision.worker in eligible
            assert len(decision.candidates) == 1
            return
        assert {c.worker for c in decision.candidates} == eligible
        for candidate in decision.candidates:
            held = leading(keys, self.workers[candidate.worker].held)
            assert candidate.overlap_blocks == min(held, max(0, (num_tokens - 1) // BLOCK))
            assert candidate.expected_blocks >= candidate.overlap_blocks
            assert candidate.total_blocks == blocks
        assert decision.applied_seq == self.workers[decision.worker].applied
        best = max(candidate.overlap_blocks for candidate in decision.candidates)
        assert decision.regret_tokens == (best - decision.chosen.overlap_blocks) * BLOCK

    def _catch_up(self, decision_id):
        """What the replica had said of the request before it was decided."""
        kind, worker = self.early.pop(decision_id, (None, None))
        if kind is not None:
            self._hear(decision_id, kind, worker)

    @rule(decision_id=_ids, kind=st.sampled_from(list(LifecycleKind)), worker=_workers)
    def report(self, decision_id, kind, worker):
        """From any worker, in any order, in a message whose blocks are not applied."""
        known = self.workers.get(worker)
        event = LifecycleEvent(kind, decision_id, 0, 0)
        self.core.push(WorkerPush(worker, -1, 5, lifecycle=(event,), relay=RelayStatus(partial=True)))
        if known is not None:
            known.heard_at = self.now
        if decision_id not in self.decided:
            self.early[decision_id] = kind, worker
        else:
            self._hear(decision_id, kind, worker)

    def _hear(self, decision_id, kind, worker):
        request = self.requests.get(decision_id)
        if request is None:
            return
        if kind in (LifecycleKind.END, LifecycleKind.ABORT):
            del self.requests[decision_id]
            return
        self._move(decision_id, worker)
        request.started = True
        request.expires_at = self.now + CONFIG.lease_s
        request.prefilled |= kind is LifecycleKind.FIRST_TOKEN

    @rule(worker=_workers, running=st.sets(_ids, max_size=3))
    def tell_what_runs(self, worker, running):
        known = self.workers.get(worker)
        self.core.push(WorkerPush(worker, -1, 5, running=tuple(running)))
        if known is not None:
            known.heard_at = self.now
        for decision_id in running & self.requests.keys():
            self.requests[decision_id].started = True
            self.requests[decision_id].expires_at = self.now + CONFIG.lease_s

    @rule(decision_ids=st.sets(_ids, max_size=3))
    def renew(self, decision_ids):
        """By the ingress: only until a replica has the request."""
        self.core.renew(decision_ids)
        for decision_id in decision_ids & self.requests.keys():
            if not self.requests[decision_id].started:
                self.requests[decision_id].expires_at = self.now + CONFIG.lease_start_s

    @rule(gain=st.floats(0, 1), weight=st.floats(0.01, 10))
    def change_settings(self, gain, weight):
        changed = {"rate_gain": gain, "prefill_ms_per_token": weight, "kv_pressure_ms": weight}
        self.core.configure(CONFIG.model_copy(update=changed))

    @rule(worker=_workers)
    def trust(self, worker):
        assert (self.core.trust(worker) is None) == (worker not in self.workers)

    @rule(decision_id=_ids)
    def cancel(self, decision_id):
        self.core.cancel(decision_id)
        self.requests.pop(decision_id, None)

    @rule(decision_id=_ids, worker=_workers)
    def rebook(self, decision_id, worker):
        self.core.rebook(decision_id, worker)
        if decision_id in self.requests:
            self._move(decision_id, worker)

    @rule(seconds=st.integers(1, 6))
    def let_time_pass(self, seconds):
        self.now += seconds
        self.core.sweep()
        for decision_id in [i for i, r in self.requests.items() if r.expires_at <= self.now]:
            del self.requests[decision_id]
        for worker in [w for w, known in self.workers.items() if known.heard_at < self.now - 40]:
            self._lose(worker)

    # What must hold

    @invariant()
    def agrees(self):
        self.core.check_integrity()
        statuses = {status.worker: status for status in self.core.workers()}
        assert set(statuses) == set(self.core.pool().contracts) == set(self.workers)
        assert self.core.stats().open_requests == len(self.requests)
        for worker, status in statuses.items():
            known = self.workers[worker]
            assert (status.epoch, status.applied_seq) == (known.epoch, known.applied)
            assert status.num_blocks == len(known.held)
            self._check_load(worker, status.load)

    def _check_load(self, worker, load):
        mine = [request for request in self.requests.values() if request.worker == worker]
        assert load.active_requests == len(mine)
        assert load.decode_blocks == len({key for request in mine for key in request.keys})
        waiting = [request for request in mine if not request.prefilled]
        assert 0 <= load.prefill_tokens <= sum(request.num_tokens for request in waiting)
        assert (load.prefill_tokens > 0) == any(request.num_tokens for request in waiting)
        assert load.waiting_requests == len(waiting)

    @invariant()
    def nothing_is_expected_without_a_reason(self):
        for status in self.core.workers():
            if status.contract.publishes_events:
                asked = {k for r in self.requests.values() if r.worker == status.worker for k in r.keys}
                assert status.expected_blocks <= len(asked)

    # Inner workings

    def _push(self, worker, epoch, seq, change, *, table=False):
        contract = contract_of(worker) if table else None
        return self.core.push(WorkerPush(worker, epoch, seq, (change,), table=table, contract=contract))

    def _eligible(self, excluded):
        left = {worker for worker in self.workers if worker not in excluded}
        heard = {worker for worker in left if self.workers[worker].heard_at >= self.now - 10}
        return heard or left

    def _move(self, decision_id, worker):
        if worker in self.workers:
            self.requests[decision_id].worker = worker
        elif self.requests[decision_id].worker != worker:
            del self.requests[decision_id]

    def _lose(self, worker):
        self.workers.pop(worker, None)
        for decision_id in [i for i, r in self.requests.items() if r.worker == worker]:
            del self.requests[decision_id]


def keyed(keys: list[int]) -> KeyedView:
    return KeyedView(np.array(keys, dtype="<u8").tobytes())


def leading(keys: list[int], held: set[int]) -> int:
    return next((count for count, key in enumerate(keys) if key not in held), len(keys))


TestCoreAgainstModel = CoreAgainstModel.TestCase
TestCoreAgainstModel.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)
