"""The simulated engine's own behaviour; that it is vLLM's is tests/engines/test_simulated_differential.py."""

from __future__ import annotations

from typing import Any

import pytest

from simulation import (
    CPU,
    Cleared,
    EngineSpec,
    Profile,
    Removed,
    RequestRefused,
    RoleNotSimulated,
    SimulatedEngine,
    SimulatedMedia,
    SimulatedRequest,
    Step,
    Stored,
    Stuck,
)
from tests.unit.simulated_requests import BLOCK, request

PROMPT = list(range(10))


def engine_of(**sizes: Any) -> SimulatedEngine:
    defaults = {
        "block_size": BLOCK,
        "num_blocks": 9,
        "max_num_batched_tokens": 64,
        "max_model_len": 32,
        "async_scheduling": False,
    }
    return SimulatedEngine(EngineSpec(**(defaults | sizes)), Profile())


def finish(engine: SimulatedEngine, *requests: SimulatedRequest) -> list[Step]:
    for one in requests:
        engine.add(one)
    steps = []
    while (step := engine.step()) is not None:
        engine._scheduler.kv.pool.check_integrity()
        steps.append(step)
    return steps


def stored(steps: list[Step]) -> list[int]:
    return [int(k) for s in steps for e in s.events if isinstance(e, Stored) for k in e.keys]


def cached(steps: list[Step]) -> int:
    return next(o.cached_tokens for s in steps for o in s.outputs if o.is_first)


def test_full_blocks_of_prompt_and_output_are_stored_and_the_last_token_is_never_computed() -> None:
    one = request("a", PROMPT, output_tokens=7)
    assert stored(finish(engine_of(), one)) == one.keys[:4].tolist()
    other = request("b", PROMPT, output_tokens=6)
    assert stored(finish(engine_of(), other)) == other.keys[:3].tolist()


def test_a_repeat_finds_all_but_the_block_of_its_last_token() -> None:
    engine = engine_of()
    assert cached(finish(engine, request("a", PROMPT))) == 0
    assert cached(finish(engine, request("b", PROMPT))) == 8
    assert cached(finish(engine, request("c", PROMPT[:8]))) == 4


def test_a_block_that_is_held_twice_is_stored_twice_and_removed_twice() -> None:
    engine = engine_of(num_blocks=5)
    first, again = request("a", PROMPT[:8]), request("b", PROMPT[:8])
    assert stored(finish(engine, first)) == first.keys.tolist()
    assert stored(finish(engine, again)) == [first.keys[1]]
    events = [e for s in finish(engine, request("c", range(90, 106))) for e in s.events]
    removed = [key for e in events if isinstance(e, Removed) for key in e.keys]
    assert removed == [first.keys[1], first.keys[1], first.keys[0]]


def test_a_full_cache_preempts_the_last_sequence_which_still_ends() -> None:
    engine = engine_of(num_blocks=8)
    steps = finish(engine, *(request(name, [ord(name)] * 10, output_tokens=8) for name in "ab"))
    last = {o.request_id: o for s in steps for o in s.outputs}
    assert last["a"].num_preemptions == 0 and last["b"].num_preemptions == 1
    assert sum(o.new_tokens for s in steps for o in s.outputs) == 16
    assert sum(o.is_finished for s in steps for o in s.outputs) == 2


def test_a_prompt_is_cut_into_chunks_by_the_token_budget() -> None:
    steps = finish(engine_of(max_num_batched_tokens=4), request("a", PROMPT))
    assert [step.num_scheduled_tokens for step in steps] == [4, 4, 2]


def test_a_chunk_ends_before_an_item_whose_encoding_does_not_fit() -> None:
    media = [SimulatedMedia(1, 4, 7, 4), SimulatedMedia(5, 4, 8, 4)]
    engine = engine_of(encoder_budget_tokens=4, encoder_cache_tokens=8)
    steps = finish(engine, request("a", PROMPT, media=media))
    assert [step.num_scheduled_tokens for step in steps] == [5, 5]
    assert [step.work.encoder_tokens for step in steps] == [4, 4]


def test_an_item_is_encoded_once_while_the_encoder_cache_keeps_it() -> None:
    engine = engine_of(encoder_cache_tokens=8)

    def encodes(name: str, media_id: int) -> int:
        prompt = [ord(name), *PROMPT]
        steps = finish(engine, request(name, prompt, media=[SimulatedMedia(2, 4, media_id, 4)]))
        return sum(step.work.encoder_tokens for step in steps)

    assert [encodes(*a) for a in (("a", 1), ("b", 1), ("c", 2), ("d", 3), ("e", 1))] == [4, 0, 4, 4, 4]


def test_clearing_waits_for_the_requests_and_is_told_with_the_next_step() -> None:
    engine = engine_of()
    engine.add(request("a", PROMPT, output_tokens=3))
    engine.step()
    assert not engine.clear()
    while engine.step():
        pass
    assert engine.clear()
    steps = finish(engine, request("b", PROMPT))
    assert isinstance(steps[0].events[0], Cleared)
    assert cached(steps) == 0


def test_what_is_evicted_to_the_lower_tier_comes_back_from_there() -> None:
    engine = engine_of(num_blocks=5, lower_tier_blocks=8)
    one = request("a", PROMPT)
    finish(engine, one)
    events = [e for s in finish(engine, request("b", range(90, 106))) for e in s.events]
    moved = [e for e in events if isinstance(e, Stored) and e.medium == CPU]
    assert sorted(k for e in moved for k in e.keys.tolist()) == sorted(one.keys.tolist())
    again = finish(engine, request("c", PROMPT))
    assert cached(again) == 8
    assert again[0].work.loaded_tokens == 8 and again[0].work.prefill_tokens == 2


@pytest.mark.parametrize("in_flight", [False, True])
def test_an_aborted_request_frees_its_blocks_and_says_no_more(in_flight: bool) -> None:
    engine = engine_of(async_scheduling=in_flight)
    engine.add(request("a", PROMPT, output_tokens=9))
    assert engine.step()
    engine.abort("a")
    assert engine.load().kv_usage == 0
    assert engine.step() is None or not engine.step()
    assert cached(finish(engine, request("b", PROMPT))) == 8


@pytest.mark.parametrize("in_flight", [False, True])
def test_an_engine_that_cannot_go_on_says_so_instead_of_going_round(in_flight: bool) -> None:
    engine = engine_of(async_scheduling=in_flight)
    engine._scheduler.kv.pool.take(8)  # nobody will give these back
    engine.add(request("a", PROMPT))
    with pytest.raises(Stuck, match="1 requests wait"):
        engine.step()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (request("a", []), "0 prompt"),
        (request("a", range(32)), "max_model_len=32"),
        (request("a", range(30), output_tokens=9), "num_blocks=7"),
        (request("a", PROMPT, media=[SimulatedMedia(8, 4, 1, 4)]), "within the prompt of 10"),
        (request("a", PROMPT, media=[SimulatedMedia(0, 4, 1, 99)]), "99 encoder tokens, where 64 fit"),
    ],
)
def test_what_vllm_would_refuse_is_refused_with_the_limit(wrong: SimulatedRequest, named: str) -> None:
    with pytest.raises(RequestRefused, match=named):
        engine_of(num_blocks=7).add(wrong)


def test_a_role_that_is_not_simulated_is_refused_by_name() -> None:
    with pytest.raises(RoleNotSimulated, match="prefill"):
        EngineSpec(role="prefill")
