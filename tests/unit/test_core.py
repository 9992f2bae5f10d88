"""The router's core: what the workers say goes in, decisions come out."""

from __future__ import annotations

import pickle
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from router import ContractRefused, NoWorker, RouterConfig, RouterCore, WorkerLoad
from router.columns import MAX_TOKENS
from sightline_types import (
    Decision,
    DecisionId,
    DecisionReason,
    DegradeReason,
    EngineLoad,
    KeyedView,
    KeyScheme,
    KeySpec,
    LayoutContract,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    RelayStatus,
    RouteQuery,
    Tier,
    TierDelta,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

A, B, C = (WorkerId(name) for name in "abc")
SPEC = KeySpec(KeyScheme.VLLM, 16)
LAYOUT = LayoutContract("qwen3_vl", "f1", exact=True)
CONTRACT = WorkerContract("vllm", "0.32.0", 16, KeyScheme.VLLM, "m", 4096, layouts=(LAYOUT,))
QUIET = replace(CONTRACT, publishes_events=False)
KEYS = tuple(range(1, 7))
STARTED, FIRST_TOKEN, END, ABORT = LifecycleKind


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fleet:
    """A core, and the channels of its workers."""

    def __init__(self, **config) -> None:
        self.clock = Clock()
        self.core = RouterCore(RouterConfig(**config), clock=self.clock, epoch=77, random=Random(1))
        self.seqs: dict[WorkerId, int] = {}

    def join(self, worker, held=(), contract=CONTRACT, epoch=1, **more) -> PushReply:
        self.seqs[worker] = 0
        message = WorkerPush(worker, epoch, 0, (stored(*held),), table=True, contract=contract, **more)
        return self.core.push(message)

    def push(self, worker, *deltas, epoch=1, **more) -> PushReply:
        self.seqs[worker] += 1
        return self.core.push(WorkerPush(worker, epoch, self.seqs[worker], deltas, **more))

    def say(self, worker, kind, decision_id="one", **figures) -> PushReply:
        return self.push(worker, lifecycle=(LifecycleEvent(kind, DecisionId(decision_id), **figures),))

    def decide(self, decision_id="one", **changes) -> Decision:
        return self.core.decide(query(decision_id, **changes))

    def status(self, worker):
        return next(status for status in self.core.workers() if status.worker == worker)

    def outcome(self, decision_id="one"):
        receipt = self.core.receipt(DecisionId(decision_id))
        assert receipt is not None
        return receipt.outcome


def stored(*keys: int) -> TierDelta:
    return TierDelta(Tier(), stored=np.array(keys, dtype="<u8").tobytes())


def removed(*keys: int) -> TierDelta:
    return TierDelta(Tier(), removed=np.array(keys, dtype="<u8").tobytes())


def view(*keys: int) -> KeyedView:
    return KeyedView(np.array(keys, dtype="<u8").tobytes(), np.array([2, 3, 4], "<i4").tobytes(), ((73, 40),))


def query(decision_id="one", **changes) -> RouteQuery:
    """100 tokens in 6 full blocks, a picture over the blocks 2 to 4."""
    plain = RouteQuery(
        DecisionId(decision_id),
        {SPEC: view(*KEYS)},
        num_tokens=100,
        media_tokens=40,
        layout="f1",
        first_media_offset=33,
    )
    return replace(plain, **changes)


# The workers' channel


def test_a_table_registers_a_worker_with_its_contract_and_its_blocks():
    fleet = Fleet()
    assert fleet.join(A, KEYS) == PushReply(77, 0, "ok")
    status = fleet.status(A)
    assert (status.contract, status.num_blocks, status.epoch, status.applied_seq) == (CONTRACT, 6, 1, 0)


def test_changes_are_applied_in_order():
    fleet = Fleet()
    fleet.join(A, [1, 2])
    assert fleet.push(A, stored(3), removed(1)) == PushReply(77, 1, "ok")
    assert fleet.status(A).num_blocks == 2


def test_an_unknown_worker_is_asked_for_its_table():
    fleet = Fleet()
    assert fleet.core.push(WorkerPush(A, 1, 5, (stored(1),))) == PushReply(77, -1, "table")
    assert fleet.core.workers() == ()


def test_after_a_gap_the_blocks_stay_as_they_are_until_the_table_comes():
    fleet = Fleet()
    fleet.join(A, [1])
    gap = WorkerPush(A, 1, 2, (stored(2),))
    assert fleet.core.push(gap) == PushReply(77, 0, "table")
    assert fleet.status(A).num_blocks == 1
    table = WorkerPush(A, 1, 3, (stored(5, 6, 7),), table=True, contract=CONTRACT)
    assert fleet.core.push(table) == PushReply(77, 3, "ok")
    assert fleet.status(A).num_blocks == 3


def test_a_message_that_came_before_is_ignored():
    fleet = Fleet()
    fleet.join(A, [1])
    fleet.push(A, removed(1))
    again = WorkerPush(A, 1, 0, (stored(1),), table=True, contract=CONTRACT)
    assert fleet.core.push(again) == PushReply(77, 1, "ok")
    last_again = WorkerPush(A, 1, 1, (stored(8),))
    assert fleet.core.push(last_again) == PushReply(77, 1, "ok")
    assert fleet.status(A).num_blocks == 0
    assert fleet.core.stats().duplicates == 2


def test_another_epoch_needs_a_table_of_its_own():
    fleet = Fleet()
    fleet.join(A, [1])
    assert fleet.core.push(WorkerPush(A, 2, 1, (stored(2),))).need == "table"
    assert fleet.status(A).num_blocks == 1
    fleet.join(A, [], epoch=2)
    assert (fleet.status(A).epoch, fleet.status(A).num_blocks) == (2, 0)


def test_a_new_epoch_drops_what_was_expected_of_the_worker():
    fleet = Fleet()
    fleet.join(A)
    fleet.decide()
    assert fleet.status(A).expected_blocks == 6
    fleet.join(A, epoch=2)
    assert fleet.status(A).expected_blocks == 0


def test_lifecycle_counts_even_where_the_blocks_cannot_be_applied():
    fleet = Fleet()
    fleet.join(A)
    fleet.decide()
    event = LifecycleEvent(END, DecisionId("one"))
    assert fleet.core.push(WorkerPush(A, 1, 9, lifecycle=(event,))).need == "table"
    assert fleet.status(A).load == WorkerLoad()


def test_a_leaving_worker_is_forgotten_with_its_bookings():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    assert fleet.push(A, leaving=True).need == "ok"
    assert (fleet.core.workers(), fleet.core.stats().open_requests) == ((), 0)


@pytest.mark.parametrize("bad", [{"block_size": 0}, {"kv_groups": ()}])
def test_a_bad_contract_is_refused_and_the_worker_is_not_chosen(bad):
    fleet = Fleet()
    fleet.join(A)
    with pytest.raises(ContractRefused, match="worker a/0"):
        fleet.join(A, contract=replace(CONTRACT, **bad), epoch=2)
    with pytest.raises(NoWorker):
        fleet.decide()


def test_the_errors_survive_the_way_between_processes():
    for error in (NoWorker("n"), ContractRefused("c")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_pool_version_grows_when_the_contracts_change_and_only_then():
    fleet = Fleet()
    versions = [fleet.core.pool().version]
    changes = [
        lambda: fleet.join(A),
        lambda: fleet.push(A, stored(1)),
        lambda: fleet.join(A, epoch=2),
        lambda: fleet.join(A, contract=QUIET, epoch=3),
        lambda: fleet.core.forget(A),
        lambda: fleet.core.forget(A),
    ]
    for change in changes:
        change()
        versions.append(fleet.core.pool().version)
    assert versions == [0, 1, 1, 1, 2, 3, 3]
    assert fleet.core.pool().contracts == {}


# Ranks of one replica


def test_a_request_goes_to_the_rank_that_holds_it():
    fleet = Fleet()
    for rank, held in enumerate([(), KEYS, KEYS[:2]]):
        fleet.join(WorkerId("a", rank), held)
    decision = fleet.decide()
    assert decision.worker == WorkerId("a", 1)
    assert [candidate.overlap_blocks for candidate in decision.candidates] == [6, 2, 0]


def test_a_replica_that_died_takes_its_ranks_with_it_and_no_other():
    fleet = Fleet()
    fleet.core.begin_warm([WorkerId("a", 2)])
    ranks = [WorkerId("a", 0), WorkerId("a", 1), B]
    for worker in ranks:
        fleet.join(worker, KEYS)
    fleet.core.forget_replica("a")
    assert set(fleet.core.pool().contracts) == {B}
    assert fleet.core.is_warm(), "a rank of the dead replica is awaited"
    fleet.core.forget_replica("a")


# Decisions


def test_the_worker_that_holds_the_prompt_is_chosen():
    fleet = Fleet()
    fleet.join(A, [1])
    fleet.join(B, KEYS)
    decision = fleet.decide()
    assert (decision.worker, decision.reason) == (B, DecisionReason.COST)
    assert (decision.chosen.overlap_blocks, decision.chosen.total_blocks) == (6, 6)
    assert (decision.chosen.media_overlap_blocks, decision.chosen.media_total_blocks) == (3, 3)
    assert decision.predicted_cached_tokens == 96
    assert decision.degraded == ()


def test_another_picture_earns_the_blocks_before_it():
    fleet = Fleet()
    fleet.join(A, KEYS)
    decision = fleet.decide(views={SPEC: view(1, 2, 13, 14, 15, 16)})
    assert (decision.chosen.overlap_blocks, decision.chosen.media_overlap_blocks) == (2, 0)


def test_the_only_worker_is_scored_too():
    fleet = Fleet()
    fleet.join(A, KEYS)
    decision = fleet.decide()
    assert (decision.reason, decision.chosen.overlap_blocks) == (DecisionReason.ONLY_WORKER, 6)


def test_without_workers_there_is_no_decision():
    with pytest.raises(NoWorker):
        Fleet().decide()


def test_excluded_workers_are_not_chosen_though_they_hold_everything():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B)
    assert fleet.decide(exclude=(A,)).worker == B
    with pytest.raises(NoWorker):
        fleet.decide(exclude=(A, B))


def test_a_silent_worker_is_not_chosen_while_another_is_heard():
    fleet = Fleet(worker_silence_s=15)
    fleet.join(A, KEYS)
    fleet.join(B)
    fleet.clock.now += 16
    fleet.push(B)
    assert fleet.decide().worker == B
    fleet.clock.now += 16
    assert fleet.decide("two").worker == A  # nobody is heard: all are equal again


def test_a_worker_silent_for_four_times_as_long_is_forgotten():
    fleet = Fleet(worker_silence_s=15)
    fleet.join(A)
    fleet.clock.now += 60
    fleet.core.sweep()
    assert len(fleet.core.workers()) == 1
    fleet.clock.now += 1
    fleet.core.sweep()
    assert fleet.core.workers() == ()


def test_a_twin_goes_where_the_first_one_went_before_any_event_came():
    fleet = Fleet()
    fleet.join(A)
    fleet.join(B)
    first = fleet.decide("one")
    fleet.say(first.worker, FIRST_TOKEN)
    twin = fleet.decide("two")
    assert twin.worker == first.worker
    assert (twin.chosen.overlap_blocks, twin.chosen.expected_blocks) == (0, 6)


def test_a_busy_holder_loses_to_an_idle_worker_when_waiting_costs_more_than_computing():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B)
    for i in range(3):
        long = fleet.decide(f"long{i}", views={}, num_tokens=4000, layout=None, exclude=(B,))
        assert long.worker == A
    assert fleet.decide().worker == B


def test_the_comparison_policy_of_the_configuration_is_used():
    fleet = Fleet(policy="round_robin")
    fleet.join(A, KEYS)
    fleet.join(B)
    decisions = [fleet.decide(str(i)) for i in range(4)]
    assert [d.worker for d in decisions] == [A, B, A, B]
    assert {d.reason for d in decisions} == {DecisionReason.POLICY}


def test_the_kv_blocks_policy_counts_the_request_among_the_active_blocks():
    fleet = Fleet(policy="kv_blocks")
    fleet.join(A, KEYS)
    fleet.join(B)
    assert fleet.decide().worker == A


def test_workers_with_other_block_sizes_are_scored_with_their_own_keys():
    fleet = Fleet()
    fleet.join(A, [1, 2, 3])
    fleet.join(B, [91, 92], contract=replace(CONTRACT, block_size=32))
    views = {SPEC: view(*KEYS), KeySpec(KeyScheme.VLLM, 32): KeyedView(view(91, 92, 93).keys)}
    scores = {c.worker: c for c in fleet.decide(views=views).candidates}
    assert (scores[A].overlap_blocks, scores[A].total_blocks) == (3, 6)
    assert (scores[B].overlap_blocks, scores[B].total_blocks) == (2, 3)


def test_a_decision_names_why_it_is_less_than_exact():
    fleet = Fleet()
    fleet.join(A, KEYS, contract=replace(CONTRACT, layouts=()))
    decision = fleet.decide(reasons=(DegradeReason.SIZE_UNKNOWN,))
    assert decision.degraded == (DegradeReason.SIZE_UNKNOWN, DegradeReason.CONTRACT_MISSING)
    assert decision.chosen.overlap_blocks == 2


def test_a_decision_knows_how_far_its_worker_was_followed():
    fleet = Fleet()
    fleet.join(A)
    fleet.push(A)
    decision = fleet.decide()
    assert (decision.applied_seq, decision.pool_version) == (1, 1)


# The life of a request


def test_a_decision_books_what_is_not_cached_and_its_end_releases_it():
    fleet = Fleet()
    fleet.join(A, [1, 2])
    fleet.decide()
    assert fleet.status(A).load == WorkerLoad(100 - 32, 40, 1, 6, 1)
    fleet.say(A, STARTED)
    fleet.say(A, FIRST_TOKEN)
    assert fleet.status(A).load == WorkerLoad(0, 0, 1, 6)
    fleet.say(A, END)
    fleet.say(A, END)
    assert fleet.status(A).load == WorkerLoad()


def test_a_twin_books_only_what_its_forerunner_does_not_bring():
    fleet = Fleet()
    fleet.join(A)
    fleet.decide("one")
    fleet.say(A, FIRST_TOKEN, "one")
    fleet.decide("two")
    assert fleet.status(A).load == WorkerLoad(4, 0, 2, 6, 1)


@pytest.mark.parametrize("kind", [END, ABORT])
def test_what_was_expected_of_a_request_goes_with_it(kind):
    fleet = Fleet()
    fleet.join(A)
    fleet.decide()
    fleet.say(A, kind)
    assert fleet.status(A).expected_blocks == 0


def test_a_cancelled_decision_leaves_nothing_but_its_receipt():
    fleet = Fleet()
    fleet.join(A)
    fleet.decide()
    fleet.core.cancel(DecisionId("one"))
    fleet.core.cancel(DecisionId("one"))
    fleet.core.cancel(DecisionId("unknown"))
    assert (fleet.status(A).load, fleet.status(A).expected_blocks) == (WorkerLoad(), 0)
    assert fleet.outcome().kind is ABORT
    assert fleet.core.stats().cancelled == 1


def test_a_request_that_nobody_started_is_released_after_its_first_lease():
    fleet = Fleet(lease_start_s=30, expected_ttl_s=100)
    fleet.join(A)
    fleet.decide()
    fleet.clock.now += 29
    fleet.core.sweep()
    assert fleet.status(A).load.active_requests == 1
    fleet.clock.now += 1
    fleet.core.sweep()
    assert (fleet.status(A).load, fleet.status(A).expected_blocks) == (WorkerLoad(), 0)
    assert (fleet.core.stats().open_requests, fleet.core.stats().expired_leases) == (0, 1)


def test_a_started_request_lives_on_until_its_last_sign_of_life_is_too_old():
    fleet = Fleet(lease_start_s=30, lease_s=3600, worker_silence_s=10_000)
    fleet.join(A)
    fleet.decide()
    fleet.say(A, STARTED)
    fleet.clock.now += 3000
    fleet.say(A, FIRST_TOKEN)
    fleet.clock.now += 3599
    fleet.core.sweep()
    assert fleet.status(A).load.active_requests == 1
    fleet.clock.now += 1
    fleet.core.sweep()
    assert fleet.status(A).load.active_requests == 0


def test_expected_blocks_outlive_their_time_on_no_worker():
    fleet = Fleet(expected_ttl_s=30, approximate_ttl_s=120, lease_start_s=1000, worker_silence_s=1000)
    fleet.join(A)
    fleet.join(B, contract=QUIET)
    fleet.decide("one", exclude=(B,))
    fleet.decide("two", exclude=(A,))
    fleet.clock.now += 30
    fleet.core.sweep()
    assert (fleet.status(A).expected_blocks, fleet.status(B).expected_blocks) == (0, 6)
    fleet.clock.now += 90
    fleet.core.sweep()
    assert fleet.status(B).expected_blocks == 0


def test_a_worker_without_events_keeps_what_was_sent_there_after_the_end():
    fleet = Fleet()
    fleet.join(A, contract=QUIET)
    fleet.decide("one")
    fleet.say(A, END, "one")
    again = fleet.decide("two")
    assert (again.chosen.overlap_blocks, again.chosen.expected_blocks) == (0, 6)
    assert again.degraded == (DegradeReason.KV_EVENTS_OFF,)


def test_a_worker_without_events_keeps_nothing_of_a_request_that_was_aborted():
    fleet = Fleet()
    fleet.join(A, contract=QUIET)
    fleet.decide()
    fleet.say(A, ABORT)
    assert fleet.status(A).expected_blocks == 0


def test_a_worker_without_events_is_never_expected_to_hold_more_than_it_can():
    fleet = Fleet()
    fleet.join(A, contract=replace(QUIET, kv_capacity_tokens=8 * 16))
    fleet.decide("one")
    fleet.decide("two", views={SPEC: view(11, 12, 13, 14, 15, 16)})
    assert fleet.status(A).expected_blocks == 6


# Falling open


def test_a_prompt_longer_than_a_receipt_can_tell_is_scored_and_moved_as_the_longest():
    fleet = Fleet()
    fleet.join(A, [1])
    decision = fleet.decide(num_tokens=1 << 45, media_tokens=1 << 45)
    assert (decision.worker, decision.num_tokens) == (A, 1 << 45)
    assert decision.chosen.total_blocks == MAX_TOKENS // 16
    assert decision.chosen.encode_ms > 0
    fleet.core.rebook(DecisionId("one"), WorkerId("stranger"))
    kept = fleet.core.receipt(DecisionId("one")).decision
    assert kept.chosen.total_blocks == MAX_TOKENS // 16


def test_a_request_that_fell_open_takes_booking_and_expected_blocks_along():
    fleet = Fleet()
    fleet.join(A, [1, 2, 3])
    fleet.join(B, [1])
    assert fleet.decide().worker == A
    fleet.core.rebook(DecisionId("one"), B)
    assert (fleet.status(A).load, fleet.status(A).expected_blocks) == (WorkerLoad(), 0)
    assert (fleet.status(B).load, fleet.status(B).expected_blocks) == (WorkerLoad(84, 40, 1, 6, 1), 6)
    kept = fleet.core.receipt(DecisionId("one")).decision
    assert (kept.worker, kept.reason, kept.predicted_cached_tokens) == (B, DecisionReason.FELL_OPEN, 16)
    fleet.say(B, END, cached_tokens=16, prompt_tokens=100)
    assert fleet.status(B).audit.agreed == 1


def test_the_replica_that_starts_a_request_is_believed():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B)
    assert fleet.decide().worker == A
    fleet.say(B, STARTED)
    assert (fleet.status(A).load.active_requests, fleet.status(B).load.active_requests) == (0, 1)
    fleet.core.rebook(DecisionId("one"), B)
    assert fleet.core.stats().rebooked == 1


def test_a_request_that_fell_to_a_worker_that_joined_since_is_scored_late():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    fleet.join(B, [1, 2])
    fleet.core.rebook(DecisionId("one"), B)
    decision = fleet.core.receipt(DecisionId("one")).decision
    assert (decision.worker, decision.chosen.overlap_blocks) == (B, 2)


def test_a_request_that_fell_to_an_unknown_worker_is_released():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    fleet.core.rebook(DecisionId("one"), C)
    assert (fleet.status(A).load, fleet.core.stats().open_requests) == (WorkerLoad(), 0)
    decision = fleet.core.receipt(DecisionId("one")).decision
    assert (decision.worker, decision.predicted_cached_tokens) == (C, 0)


def test_a_request_that_fell_open_is_only_marked_once_it_has_ended():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B)
    fleet.decide()
    fleet.say(A, END)
    fleet.core.rebook(DecisionId("one"), B)
    fleet.core.rebook(DecisionId("unknown"), B)
    assert fleet.status(B).load == WorkerLoad()
    assert fleet.core.receipt(DecisionId("one")).decision.reason is DecisionReason.FELL_OPEN


# The audit


def test_a_prediction_that_the_engine_confirms_agrees():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    fleet.say(A, END, cached_tokens=96, prompt_tokens=100)
    outcome = fleet.outcome()
    assert (outcome.kind, outcome.predicted_tokens, outcome.cached_tokens, outcome.agreed) == (
        END,
        96,
        96,
        True,
    )
    assert (fleet.status(A).audit.agreed, fleet.status(A).audit.length_agreed) == (1, 1)


def test_a_prediction_that_the_engine_contradicts_is_counted_and_shown():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    fleet.say(A, END, cached_tokens=80, prompt_tokens=100)
    assert fleet.outcome().agreed is False
    assert fleet.status(A).audit.differed == 1
    assert fleet.decide("two").degraded == ()


@pytest.mark.parametrize(
    ("joined", "asked", "ended"),
    [
        ({}, {"reasons": (DegradeReason.SIZE_UNKNOWN,)}, {}),
        ({"contract": QUIET}, {}, {}),
        ({"contract": replace(CONTRACT, layouts=())}, {}, {}),
        ({}, {}, {"comparable": False}),
    ],
)
def test_what_claims_no_exactness_is_not_held_against_the_engine(joined, asked, ended):
    fleet = Fleet()
    fleet.join(A, KEYS, **joined)
    fleet.decide(**asked)
    fleet.say(A, END, cached_tokens=7, prompt_tokens=100, **ended)
    assert fleet.outcome().agreed is None
    assert fleet.status(A).audit.not_compared == 1


def test_a_relay_that_lost_events_is_not_held_against_the_engine():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    event = LifecycleEvent(END, DecisionId("one"), 7, 100)
    fleet.push(A, lifecycle=(event,), relay=RelayStatus(partial=True))
    assert fleet.outcome().agreed is None


def test_the_figures_of_another_worker_than_the_decided_one_are_not_compared():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B)
    fleet.decide()
    fleet.say(B, END, cached_tokens=0, prompt_tokens=999)
    assert (fleet.outcome().agreed, fleet.outcome().cached_tokens) == (None, 0)
    assert fleet.status(A).load == WorkerLoad()
    assert fleet.status(A).audit == fleet.status(B).audit
    assert fleet.status(A).audit.length_differed == 0


def test_a_prompt_length_that_differs_distrusts_the_layout_on_that_worker_only():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B, KEYS)
    fleet.decide(exclude=(B,))
    fleet.say(A, END, cached_tokens=96, prompt_tokens=101)
    scores = {c.worker: c for c in fleet.decide("two").candidates}
    assert (scores[A].overlap_blocks, scores[A].reasons) == (2, (DegradeReason.LENGTH_DISTRUST,))
    assert (scores[B].overlap_blocks, scores[B].reasons) == (6, ())
    assert fleet.status(A).reasons == (DegradeReason.LENGTH_DISTRUST,)
    assert not fleet.status(A).families[0].active


def test_a_prompt_length_that_differs_from_an_inexact_view_says_nothing():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide(reasons=(DegradeReason.SIZE_UNKNOWN,))
    fleet.say(A, END, cached_tokens=32, prompt_tokens=140)
    assert fleet.status(A).audit.length_differed == 0


def test_the_oldest_decisions_are_not_kept():
    fleet = Fleet(receipts_memory_bytes=1 << 16)
    fleet.join(A)
    for number in range(100):
        fleet.decide(str(number))
    assert fleet.core.receipt(DecisionId("0")) is None
    assert fleet.core.receipt(DecisionId("99")) is not None
    assert fleet.core.stats().receipts_bytes <= 1 << 16
    fleet.say(A, END, "0")
    assert fleet.core.stats().open_requests == 99


# Warmth and status


def test_a_core_is_warm_when_every_worker_on_the_roster_has_sent_its_table():
    fleet = Fleet()
    fleet.core.begin_warm([A, B])
    fleet.join(A)
    assert (fleet.core.is_warm(), fleet.core.late_workers()) == (False, (B,))
    fleet.join(B)
    assert (fleet.core.is_warm(), fleet.core.late_workers()) == (True, ())


def test_a_core_is_warm_after_its_time_and_names_the_late_ones():
    fleet = Fleet(warm_timeout_s=2)
    fleet.core.begin_warm([A])
    fleet.clock.now += 2
    assert (fleet.core.is_warm(), fleet.core.late_workers()) == (True, (A,))


def test_an_empty_roster_is_warm_at_once():
    fleet = Fleet()
    fleet.core.begin_warm([])
    assert fleet.core.is_warm()


def test_a_worker_is_idle_when_its_relay_is_and_nothing_is_booked():
    fleet = Fleet()
    fleet.join(A, relay=RelayStatus(idle=True))
    assert fleet.status(A).idle
    fleet.decide()
    assert not fleet.status(A).idle
    fleet.say(A, END)
    assert not fleet.status(A).idle  # the relay's newest word is not idle
    fleet.push(A, relay=RelayStatus(idle=True))
    assert fleet.status(A).idle


def test_the_status_keeps_the_engines_last_word_on_its_load():
    fleet = Fleet()
    fleet.join(A, load=EngineLoad(3, 1, 0.5))
    fleet.push(A)
    fleet.clock.now += 4
    assert (fleet.status(A).engine, fleet.status(A).silent_s) == (EngineLoad(3, 1, 0.5), 4)


# Bursts


def test_a_twin_of_a_request_under_way_waits_for_it_rather_than_computing_the_same_elsewhere():
    fleet = Fleet(decode_ms_per_request=0.1)
    fleet.join(A)
    fleet.join(B)
    home = fleet.decide("one").worker
    assert fleet.decide("two").worker == home
    assert fleet.decide("three").worker == home


def test_a_burst_spills_over_when_its_place_is_too_busy():
    fleet = Fleet()
    fleet.join(A)
    fleet.join(B)
    homes = [fleet.decide(f"burst{n}").worker for n in range(40)]
    assert set(homes) == {A, B}


def test_an_end_that_is_told_twice_leaves_the_receipt_as_it_was():
    fleet = Fleet()
    fleet.join(A)
    fleet.decide("one")
    fleet.say(A, STARTED, "one")
    fleet.say(A, END, "one", cached_tokens=0, prompt_tokens=100)
    first = fleet.outcome("one")
    assert first.agreed is True
    fleet.say(A, END, "one", cached_tokens=0, prompt_tokens=100)
    assert fleet.outcome("one") == first
