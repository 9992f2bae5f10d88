"""The fleet simulator: nothing gets lost, equal seeds are equal runs, and what is foretold comes true."""

from __future__ import annotations

import dataclasses

import pytest
from fleets import groups, run, scenario, single, turn
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.prompts import Session, Text, Turn, make_id
from simulation.scenario import POLICIES, Change, config_of


def assert_every_request_ended_once(result, sessions) -> None:
    asked = [each for session in sessions for each in session.turns]
    assert [r.number for r in result.records] == list(range(len(asked)))
    assert all(r.is_served for r in result.records), [r.failure for r in result.records if not r.is_served]
    assert sum(r.generated for r in result.records) == sum(each.output_tokens for each in asked)
    assert all(r.generated == r.output_tokens for r in result.records)
    for record in result.records:
        assert record.arrived_ms < record.first_token_ms <= record.ended_ms
        assert 0 <= record.cached_tokens < record.prompt_tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_with_every_policy_each_request_is_served_once_and_whole(policy):
    sessions = groups(40, 15.0)
    assert_every_request_ended_once(run(sessions, policy), sessions)


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_whatever_arrives_is_served_and_adds_up(data):
    lengths = st.tuples(st.floats(0, 400), st.integers(0, 5), st.integers(1, 300), st.integers(1, 40))
    asked = data.draw(st.lists(lengths, min_size=1, max_size=25))
    sessions = [
        single(start, n, shown, question=question, output=output)
        for n, (start, shown, question, output) in enumerate(asked)
    ]
    result = run(
        sessions, data.draw(st.sampled_from(POLICIES)), event_loss=data.draw(st.sampled_from([0, 0.3]))
    )
    assert_every_request_ended_once(result, sorted(sessions, key=lambda session: session.start_ms))
    summary = result.summary
    assert summary.prefilled_tokens == sum(r.prompt_tokens - r.cached_tokens for r in result.records)
    assert summary.served == len(sessions)


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    sessions = groups(40, 10.0)
    one, again, other = (run(sessions, "power_of_two", seed=seed) for seed in (1, 1, 2))
    assert one.records == again.records
    assert one.summary == again.summary
    assert [r.worker for r in one.records] != [r.worker for r in other.records]


def test_one_after_the_other_the_router_foretells_what_the_engine_finds():
    sessions = groups(40, 1000.0)
    result = run(sessions)
    assert [r.predicted_tokens for r in result.records] == [r.cached_tokens for r in result.records]
    assert result.records[0].cached_tokens == 0
    assert all(r.cached_tokens == 96 for r in result.records[30:]), "instructions and picture, in full blocks"


def test_a_picture_seen_before_is_found_by_kv_and_by_round_robin_only_by_luck():
    sessions = groups(60, 200.0)
    assert run(sessions, "kv").summary.hit_rate > run(sessions, "round_robin").summary.hit_rate


def test_a_turn_follows_the_end_of_the_one_before_and_a_pause():
    session = Session(5.0, (turn("a", "p"), turn("b", "p", think_ms=300.0)))
    first, second = run([session]).records
    assert first.arrived_ms == 5.0
    assert second.arrived_ms == pytest.approx(first.ended_ms + 300.0)


def test_an_answer_is_found_again_where_the_next_turn_quotes_it():
    first = Turn((Text(1, 64),), 64, output_id=2)
    second = Turn((Text(1, 64), Text(2, 64), Text(3, 10)), 8, output_id=4)
    answered = run([Session(0.0, (first, second))]).records[1]
    assert answered.cached_tokens == 112, "all but the block of the last token, which is never computed"


def test_lost_messages_are_made_up_for_by_tables():
    sessions = groups(80, 40.0)
    lossless, lossy = run(sessions), run(sessions, event_loss=0.3)
    assert_every_request_ended_once(lossy, sessions)
    assert lossy.summary.hit_rate > 0.7 * lossless.summary.hit_rate
    assert lossy.summary.hit_rate > run(sessions, "round_robin").summary.hit_rate


@pytest.mark.parametrize("policy", ["kv", "round_robin", "media_sticky"])
def test_a_death_loses_no_request(policy):
    sessions = groups(60, 10.0, num_pictures=20)
    changes = (Change(at_s=0.3, kind="die", number=1),)
    result = run(sessions, policy, changes=changes, notice_ms=100.0)
    assert_every_request_ended_once(result, sessions)
    assert result.summary.rerouted > 0
    late = [r.worker for r in result.records if r.arrived_ms > 450.0]
    assert late
    assert "w001/0" not in late


def test_workers_that_join_take_their_share_and_one_that_leaves_gets_no_more():
    sessions = groups(120, 10.0)
    changes = (Change(at_s=0.4, kind="join", number=2), Change(at_s=0.8, kind="leave", number=0))
    result = run(sessions, "least_loaded", changes=changes)
    assert_every_request_ended_once(result, sessions)
    assert {r.worker for r in result.records if r.arrived_ms > 500} >= {"w003/0", "w004/0"}
    assert "w000/0" not in {r.worker for r in result.records if r.arrived_ms > 850}


def test_without_a_worker_requests_fail_and_the_run_ends():
    changes = tuple(Change(at_s=0.1, kind="die", number=n) for n in range(3))
    result = run(groups(30, 10.0), changes=changes, notice_ms=20.0)
    assert {r.failure for r in result.records if not r.is_served} == {"no worker"}
    assert result.summary.failures + result.summary.served == 30


def test_a_request_that_no_engine_can_hold_fails_by_name_and_books_nothing():
    result = run([single(0.0, "huge", question=20_000), single(50.0, "small")])
    assert "KV cache" in result.records[0].failure
    assert result.records[1].is_served


def test_the_oracle_knows_at_once_what_others_hear_later():
    sessions = groups(80, 8.0)
    late = run(sessions, "kv", event_delay_ms=400.0)
    oracle = run(sessions, "oracle", event_delay_ms=400.0)
    assert sum(r.predicted_tokens for r in oracle.records) > sum(r.predicted_tokens for r in late.records)


def test_the_first_token_waits_for_ingress_dispatch_and_prefill():
    alone = run([single(0.0, "a", question=100, output=1)], ingress_ms=7.0, dispatch_ms=3.0).records[0]
    assert alone.ttft_ms == pytest.approx(7.0 + 3.0 + 1.0 + 0.05 * 140)


def test_samples_follow_load_and_where_pictures_live():
    result = run(groups(60, 20.0), "media_sticky")
    assert {sample.worker for sample in result.samples.loads} == {"w000/0", "w001/0", "w002/0"}
    assert max(sample.running + sample.waiting for sample in result.samples.loads) > 0
    assert len(result.samples.homes) == 6
    assert all(len(at) == 1 for at in result.samples.homes.values()), "a sticky picture has one home"


def test_a_policy_is_a_setting_of_the_router_and_nothing_else():
    given_settings = scenario().router.model_dump()
    for policy in POLICIES:
        made = config_of(policy, scenario()).model_dump()
        assert {name for name in made if made[name] != given_settings[name]} <= {"policy"}
    assert config_of("oracle", scenario()) == config_of("kv", scenario())


def test_texts_of_one_name_share_their_beginning_and_no_more():
    shared = make_id("same")
    sessions = [
        Session(0.0, (Turn((Text(shared, 100),), 4, 1),)),
        Session(500.0, (Turn((Text(shared, 64), Text(7, 100)), 4, 2),)),
        Session(1000.0, (Turn((Text(8, 200),), 4, 3),)),
    ]
    assert [r.cached_tokens for r in run(sessions).records] == [0, 64, 0]


def test_every_record_is_plain_data():
    record = run([single(0.0, "a")]).records[0]
    assert dataclasses.asdict(record)["worker"].startswith("w00")
