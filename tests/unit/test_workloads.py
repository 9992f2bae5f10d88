"""The built-in workloads are what their descriptions say, and the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from app.simulate import picture_tokens
from processors.families.smart_resize import PatchGrid
from sightline_types import ImageSize, KeyScheme, KeySpec
from simulation.arrivals import closed_loop, poisson, replay
from simulation.errors import WorkloadError
from simulation.keying import key_turn
from simulation.picture_tokens import QWEN3_VL_TOKENS
from simulation.prompts import Session, Text, Turn, make_id
from simulation.workloads import WORKLOADS, Load, find_workload

SPEC = KeySpec(KeyScheme.VLLM, 16)
TURN = Turn((Text(1, 1),), 1, 1)
GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "qwen3_vl.json"


def load(**changes) -> Load:
    plain = {"rate_per_s": 40.0, "num_requests": 300, "think_s": 1.0, "seed": 0}
    return Load(**{**plain, "picture_tokens": picture_tokens, **changes})


def turns(name: str, **changes) -> list[Turn]:
    return [turn for session in find_workload(name).make(load(**changes)) for turn in session.turns]


def test_groups_are_five_prompts_about_three_pictures_each():
    asked = turns("W1")
    by_pictures = Counter(tuple(picture.media_id for picture in turn.pictures) for turn in asked)
    assert (len(by_pictures), set(by_pictures.values())) == (60, {5})
    assert {turn.prompt_tokens for turn in asked} == {3 * 880 + 1300}
    assert {turn.output_tokens for turn in asked} == {300}


def test_a_sliding_window_shares_text_and_moves_by_one_picture_a_turn():
    sessions = find_workload("sliding_window").make(load(num_requests=240))
    assert (len(sessions), {len(session.turns) for session in sessions}) == (30, {8})
    first, second = sessions[0].turns[:2]
    assert first.pictures[1:] == second.pictures[:-1]
    assert first.parts[0] == second.parts[0]
    assert {picture.tokens for picture in first.pictures} == {2550}


def test_a_signature_is_seen_only_where_the_address_is_the_identity():
    normalized, by_url = turns("W3"), turns("W3", sees_urls=True)
    assert len({turn.pictures for turn in normalized}) == 60
    assert len({turn.pictures for turn in by_url}) == 300


def test_a_hot_prefix_is_everybodys_and_the_rest_nobodys():
    views = [key_turn(turn, SPEC) for turn in turns("W4")]
    keys = Counter(key for view in views for key in view.view.key_array().tolist())
    assert set(keys.values()) == {1, 300}
    assert sum(count == 300 for count in keys.values()) == 4000 // 16
    assert len({view.tie_key for view in views}) == 300, "or they would all go to one worker when it is quiet"


def test_mixed_sizes_go_from_64_pixels_to_4k_and_popular_ones_come_more_often():
    shown = Counter(picture for turn in turns("W6", num_requests=2000) for picture in turn.pictures)
    assert {"64x64", "3840x2160"} <= {picture.size for picture in shown}
    assert shown.most_common(1)[0][1] > 20 * min(shown.values())


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W6"])
def test_the_same_seed_makes_the_same_workload_and_another_one_another(name):
    make = find_workload(name).make
    assert make(load(seed=1)) == make(load(seed=1))
    assert make(load(seed=1)) != make(load(seed=2))


def test_the_rate_is_that_of_the_arrivals():
    sessions = find_workload("W4").make(load(num_requests=4000, rate_per_s=20.0))
    assert 4000 / (sessions[-1].start_ms / 1e3) == pytest.approx(20.0, rel=0.05)


def test_users_of_a_closed_loop_think_between_turns_and_not_before_the_first():
    asked = [(Turn((Text(1, 1),), 1, 1),) * 3] * 200
    sessions = closed_loop(asked, 2.0, Random(0), ramp_s=10.0)
    assert {session.turns[0].think_ms for session in sessions} == {0.0}
    pauses = [turn.think_ms for session in sessions for turn in session.turns[1:]]
    assert sum(pauses) / len(pauses) == pytest.approx(2000.0, rel=0.15)
    assert (sessions[0].start_ms, sessions[100].start_ms) == (0.0, 5000.0)


def test_a_replay_begins_at_once_and_runs_as_fast_as_asked():
    sessions = [Session(at, (TURN,)) for at in (3000.0, 1000.0, 2000.0)]
    assert [session.start_ms for session in replay(sessions, speed=2.0)] == [0.0, 500.0, 1000.0]
    assert len(replay(sessions, limit=2)) == 2


@pytest.mark.parametrize(("limit", "turns"), [(1, [1]), (3, [3]), (4, [3, 1]), (5, [3, 2]), (99, [3, 2])])
def test_a_replay_is_cut_by_its_requests_and_not_by_its_sessions(limit, turns):
    sessions = [Session(5.0, (TURN,) * 2), Session(1.0, (TURN,) * 3)]
    assert [len(session.turns) for session in replay(sessions, limit=limit)] == turns


def test_the_rate_of_a_replay_counts_every_turn(tmp_path):
    trace = tmp_path / "trace.jsonl"
    part = {"parts": [{"text": "a", "tokens": 9}], "output_tokens": 1}
    lines = [
        {"at_ms": at, "session": f"s{at}", **({"think_ms": 5} if place else {}), **part}
        for at in range(0, 5000, 1000)
        for place in range(4)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    sessions = find_workload("T").make(load(trace=trace, rate_per_s=10.0, num_requests=20))
    assert [session.start_ms for session in sessions] == [0.0, 500.0, 1000.0, 1500.0, 2000.0]


def test_arrivals_of_a_poisson_process_are_in_order():
    starts = [session.start_ms for session in poisson([()] * 50, 5.0, Random(3))]
    assert starts == sorted(starts)


def test_the_table_of_picture_sizes_is_what_the_family_says():
    grid = PatchGrid(16, 2, 1 << 16, 1 << 24)
    assert {size: grid.num_tokens(ImageSize(*size)) for size in QWEN3_VL_TOKENS} == dict(QWEN3_VL_TOKENS)
    golden = {
        (r["width"], r["height"]): r["num_tokens"]
        for r in json.loads(GOLDEN.read_text())["image"]
        if "num_tokens" in r
    }
    known = golden.keys() & QWEN3_VL_TOKENS.keys()
    assert len(known) >= 7
    assert {size: golden[size] for size in known} == {size: QWEN3_VL_TOKENS[size] for size in known}
    assert picture_tokens(800, 600) == golden[800, 600]


def test_an_unknown_workload_is_refused_with_the_names_there_are():
    with pytest.raises(WorkloadError, match="no workload 'W9': there are W1 groups, W1c"):
        find_workload("W9")


@pytest.mark.parametrize("name", ["W5", "T"])
def test_a_replay_without_a_trace_says_how_to_give_one(name):
    with pytest.raises(WorkloadError, match="--trace FILE"):
        find_workload(name).make(load())


def test_workloads_go_by_alias_and_by_name():
    for workload in WORKLOADS.values():
        assert find_workload(workload.name) is find_workload(workload.alias.lower()) is workload


def test_a_view_is_the_prompts_and_the_keys_go_on_through_the_answer():
    turn = turns("W1")[0]
    keyed = key_turn(turn, SPEC)
    assert len(keyed.view.key_array()) == turn.prompt_tokens // 16
    assert len(keyed.keys) == (turn.prompt_tokens + turn.output_tokens) // 16
    assert keyed.view.key_array().tolist() == keyed.keys[: turn.prompt_tokens // 16].tolist()
    assert keyed.view.media_block_array().max() < turn.prompt_tokens // 16
    assert make_id("a") == make_id("a") != make_id("b")
