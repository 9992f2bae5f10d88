"""The core's choices beyond the cheapest worker: hints, bursts, trust, leases, live settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from router import Overloaded, UnknownWorker
from sightline_types import (
    DecisionId,
    DecisionReason,
    DegradeReason,
    EngineLoad,
    MediaId,
    MediaSpan,
    RelayStatus,
    RouteHints,
    WorkerId,
)
from tests.unit.test_core import (
    CONTRACT,
    END,
    FIRST_TOKEN,
    KEYS,
    QUIET,
    STARTED,
    A,
    B,
    C,
    Fleet,
    removed,
    stored,
)

PICTURE = (MediaSpan(33, 40, MediaId(9)),)


def ask(fleet: Fleet, name: str, session: int | None = None, **changes):
    hard = changes.pop("hard", False)
    return fleet.decide(name, hints=RouteHints(session=session, is_session_hard=hard), **changes)


# Hints


def test_a_soft_session_stays_while_that_costs_little_and_leaves_when_it_costs_more():
    fleet = Fleet(session_bonus_ms=20.0)
    for worker in (A, B):
        fleet.join(worker)
    first = ask(fleet, "0", session=5)
    other = B if first.worker == A else A
    fleet.say(first.worker, END, "0", cached_tokens=0, prompt_tokens=100)
    elsewhere = {"views": {}, "layout": None, "media_tokens": 0, "first_media_offset": None}
    assert ask(fleet, "1", session=5, tie_key=1, **elsewhere).worker == first.worker
    for number in range(30):
        fleet.decide(f"load{number}", exclude=(other,))
    assert ask(fleet, "2", session=5, **elsewhere).worker == other


def test_a_hard_session_stays_whatever_it_costs_until_its_worker_is_gone():
    fleet = Fleet()
    for worker in (A, B):
        fleet.join(worker)
    home = ask(fleet, "0", session=5, hard=True).worker
    other = B if home == A else A
    fleet.push(other, stored(*KEYS))
    for number in range(30):
        fleet.decide(f"load{number}", exclude=(other,))
    again = ask(fleet, "1", session=5, hard=True)
    assert (again.worker, again.reason) == (home, DecisionReason.SESSION)
    fleet.core.forget(home)
    assert ask(fleet, "2", session=5, hard=True).worker == other
    fleet.core.check_integrity()


def test_a_pinned_request_goes_to_its_worker_or_to_nobody():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B)
    pinned = fleet.decide(hints=RouteHints(worker="b/0"))
    assert (pinned.worker, pinned.reason) == (B, DecisionReason.PINNED)
    with pytest.raises(UnknownWorker, match="no worker 'c'; known: a/0, b/0"):
        fleet.decide(hints=RouteHints(worker="c"))


def test_a_pin_to_a_replica_leaves_the_choice_of_the_rank():
    fleet = Fleet()
    ranks = [WorkerId("a", 0), WorkerId("a", 1)]
    fleet.join(ranks[0])
    fleet.join(ranks[1], KEYS)
    fleet.join(B, KEYS)
    assert fleet.decide(hints=RouteHints(worker="a")).worker == ranks[1]


# Bursts and hot prefixes


def test_a_burst_of_one_new_picture_goes_to_one_place_and_spills_when_that_is_too_busy():
    fleet = Fleet(prefill_ms_per_token=1.0)
    for worker in (A, B, C):
        fleet.join(worker)
    places = [fleet.decide(str(number), spans=PICTURE).worker for number in range(40)]
    assert len(set(places[:4])) == 1
    assert len(set(places)) > 1


def test_a_prefix_that_everybody_holds_on_one_worker_does_not_bury_it():
    """Nothing is left to prefill there, so that only what is under way can send a request elsewhere."""
    fleet = Fleet(prefill_ms_per_token=0.05, encode_ms_per_token=0.05)
    fleet.join(A, KEYS)
    for worker in (B, C):
        fleet.join(worker)
    places: Counter[WorkerId] = Counter()
    for number in range(90):
        decision = fleet.decide(str(number))
        places[decision.worker] += 1
        fleet.say(decision.worker, FIRST_TOKEN, str(number))
    assert places[A] < 60
    assert min(places.values()) > 10


@pytest.mark.parametrize(("sharers_per_copy", "least"), [(8.0, 15), (float("inf"), 0)])
def test_a_prefix_of_all_requests_is_computed_again_by_a_worker_that_would_idle(sharers_per_copy, least):
    """No single request would do it: it costs 10 times what the crowd at A does."""
    fleet = Fleet(prefill_ms_per_token=5.0, sharers_per_copy=sharers_per_copy)
    fleet.join(A, KEYS)
    for worker in (B, C):
        fleet.join(worker)
    places: Counter[WorkerId] = Counter({A: 0, B: 0, C: 0})
    for number in range(60):
        decision = fleet.decide(str(number))
        places[decision.worker] += 1
        fleet.say(decision.worker, FIRST_TOKEN, str(number))
    assert min(places.values()) >= least
    assert (min(places.values()) == 0) == (least == 0)


def test_a_picture_that_a_worker_encoded_is_sent_there_again_though_its_blocks_are_gone():
    fleet = Fleet()
    for worker in (A, B):
        fleet.join(worker)
    home = fleet.decide("0", spans=PICTURE).worker
    fleet.say(home, FIRST_TOKEN, "0")
    fleet.say(home, END, "0", cached_tokens=0, prompt_tokens=100)
    again = fleet.decide("1", spans=PICTURE, tie_key=99)
    assert again.worker == home
    scores = {c.worker: c for c in again.candidates}
    other = B if home == A else A
    assert (scores[home].encode_ms, scores[other].encode_ms) == (0.0, 2.0)
    assert scores[home].media[0].is_encoded
    assert not scores[other].media[0].is_encoded


def test_a_receipt_says_medium_by_medium_what_each_candidate_held():
    fleet = Fleet()
    fleet.join(A, KEYS[:4])
    fleet.join(B, KEYS[:1])
    fleet.decide(spans=PICTURE)
    kept = fleet.core.receipt(DecisionId("one")).decision
    held = {c.worker: (c.media[0].held_blocks, c.media[0].total_blocks) for c in kept.candidates}
    assert held == {A: (2, 3), B: (0, 3)}


def test_regret_is_what_the_best_choice_for_the_cache_would_have_held_beyond():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.join(B, KEYS[:1])
    assert fleet.decide("0", hints=RouteHints(worker="b")).regret_tokens == 0
    fleet.say(B, END, "0")
    for number in range(40):
        fleet.decide(f"load{number}", exclude=(B,))
    decision = fleet.decide("1")
    assert (decision.worker, decision.regret_tokens) == (B, 5 * 16)
    assert fleet.core.stats().regret_tokens == 5 * 16


# The audit


def test_an_eviction_in_between_explains_a_shorter_hit():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    fleet.push(A, removed(4))
    fleet.say(A, END, cached_tokens=48, prompt_tokens=100)
    audit = fleet.status(A).audit
    assert (audit.differed, audit.explained, fleet.outcome().agreed) == (0, 1, None)


def test_blocks_of_an_aborted_twin_that_came_after_the_decision_explain_a_longer_hit():
    fleet = Fleet()
    fleet.join(A)
    fleet.decide()
    fleet.push(A, stored(1, 2))
    fleet.say(A, END, cached_tokens=32, prompt_tokens=100)
    assert (fleet.status(A).audit.differed, fleet.status(A).audit.explained) == (0, 1)


def test_repeated_unexplained_differences_distrust_and_right_shadow_predictions_restore():
    fleet = Fleet(distrust_after_differences=2, trust_after_agreements=2)
    fleet.join(A, KEYS)

    def serve(name: str, cached: int):
        decision = fleet.decide(name)
        fleet.say(A, END, name, cached_tokens=cached, prompt_tokens=100)
        return decision.chosen.overlap_blocks

    assert [serve("0", 0), serve("1", 0)] == [6, 6]
    assert [serve("2", 96), serve("3", 96)] == [2, 2], "no credit beyond the text, but still compared"
    assert serve("4", 96) == 6
    assert fleet.status(A).audit.layouts[0].times_distrusted == 1


def test_a_distrusted_worker_is_named_and_an_operator_can_restore_it():
    fleet = Fleet()
    fleet.join(A, KEYS)
    fleet.decide()
    fleet.say(A, END, cached_tokens=96, prompt_tokens=101)
    assert fleet.decide("two").degraded == (DegradeReason.LENGTH_DISTRUST,)
    assert fleet.core.trust(A) == ("f1",)
    assert fleet.decide("three").degraded == ()
    assert fleet.core.trust(B) is None


# Speed


def test_a_workers_speed_is_learned_from_requests_that_had_it_to_themselves():
    fleet = Fleet(prefill_ms_per_token=0.05)
    fleet.join(A)
    for number in range(20):
        fleet.decide(str(number), media_tokens=0, layout=None, first_media_offset=None, views={})
        fleet.say(A, FIRST_TOKEN, str(number))
        fleet.say(A, END, str(number), cached_tokens=0, prompt_tokens=2000, first_token_ms=1000.0)
    fleet.core.sweep()
    rates = fleet.status(A).rates
    assert rates.prefill_samples == 20
    assert rates.prefill_ms_per_token == pytest.approx(0.5, rel=0.15)


def test_requests_that_shared_a_prefill_teach_nothing():
    fleet = Fleet()
    fleet.join(A)
    fleet.decide("0")
    fleet.decide("1")
    for name in ("0", "1"):
        fleet.say(A, END, name, cached_tokens=0, prompt_tokens=100, first_token_ms=500.0)
    assert fleet.status(A).rates.prefill_samples == 0


# Leases, admission, live settings


def test_a_replica_renews_what_it_runs_and_what_it_no_longer_names_is_released():
    fleet = Fleet(lease_s=60.0)
    fleet.join(A)
    for name in ("kept", "lost"):
        fleet.decide(name)
        fleet.say(A, STARTED, name)
    for _ in range(6):
        fleet.clock.now += 15
        fleet.push(A, running=(DecisionId("kept"),))
        fleet.core.sweep()
    stats = fleet.core.stats()
    assert (stats.open_requests, stats.expired_leases) == (1, 1)


def test_where_the_engine_says_that_nothing_runs_started_bookings_are_released():
    fleet = Fleet(reconcile_after_s=5.0, lease_s=3600.0)
    fleet.join(A)
    fleet.decide("started")
    fleet.say(A, STARTED, "started")
    fleet.decide("waiting")
    fleet.push(A, relay=RelayStatus(idle=True))
    fleet.core.sweep()
    assert fleet.core.stats().reconciled == 0, "it may have begun a moment ago"
    fleet.clock.now += 6
    fleet.push(A, relay=RelayStatus(idle=True))
    fleet.core.sweep()
    stats = fleet.core.stats()
    assert (stats.reconciled, stats.open_requests) == (1, 1)


def test_an_idle_replica_is_believed_over_its_engines_last_figures():
    fleet = Fleet()
    fleet.join(A)
    fleet.push(A, load=EngineLoad(num_running=7))
    assert fleet.status(A).engine.num_running == 7
    fleet.push(A, relay=RelayStatus(idle=True), load=EngineLoad(num_running=7))
    assert fleet.status(A).engine.num_running == 0


def test_when_every_worker_is_full_a_request_is_refused_and_counted():
    fleet = Fleet(admission={"max_waiting_requests_per_worker": 1})
    for worker in (A, B):
        fleet.join(worker)
    assert {fleet.decide("0").worker, fleet.decide("1").worker} == {A, B}
    with pytest.raises(Overloaded):
        fleet.decide("2")
    assert fleet.core.stats().overloaded == 1
    fleet.say(A, FIRST_TOKEN, "0")
    fleet.say(B, FIRST_TOKEN, "1")
    fleet.decide("2")


def test_the_approximate_policy_forgets_the_events_and_asks_for_tables_when_it_ends():
    fleet = Fleet()
    config = fleet.core._config
    fleet.join(A, KEYS)
    fleet.core.configure(config.model_copy(update={"policy": "approximate"}))
    fleet.push(A, stored(77))
    assert fleet.status(A).num_blocks == 0
    decision = fleet.decide()
    assert (decision.chosen.overlap_blocks, decision.degraded) == (0, (DegradeReason.KV_EVENTS_OFF,))
    fleet.say(A, END)
    assert fleet.decide("two").chosen.expected_blocks == 6, "it counts where it was sent"
    fleet.core.configure(config)
    assert fleet.push(A).need == "table"
    fleet.push(A, stored(*KEYS), table=True, contract=CONTRACT)
    assert fleet.status(A).num_blocks == 6
    fleet.core.check_integrity()


def test_expected_blocks_of_a_worker_that_says_no_capacity_are_bounded_by_the_setting():
    fleet = Fleet(approximate_capacity_tokens=64)
    fleet.join(A, contract=replace(QUIET, kv_capacity_tokens=0))
    for number in range(3):
        fleet.decide(str(number))
    assert fleet.status(A).expected_blocks <= 6


def test_a_contract_says_how_much_the_encoder_keeps():
    fleet = Fleet(encoder_cache_tokens=8192)
    fleet.join(A, contract=replace(CONTRACT, encoder_cache_tokens=39))
    fleet.decide(spans=PICTURE)
    fleet.say(A, FIRST_TOKEN)
    assert fleet.status(A).encoder_cached_tokens == 0, "the picture has 40"
