"""What a request would cost on a worker, and what it may earn there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config import RouterConfig
from router.cost import Rates, encode_tokens_left, prefill_ms, pressure_ms, score, wait_ms
from router.credit import Credit, credit
from router.index import Leading
from router.load import WorkerLoad
from router.usable import usable_blocks
from sightline_types import (
    CandidateScore,
    DecisionId,
    DegradeReason,
    EngineLoad,
    KeyedView,
    KeyScheme,
    KeySpec,
    KvGroup,
    LayoutContract,
    RouteQuery,
    WorkerContract,
    WorkerId,
)

A = WorkerId("a")
COLD = Leading(0, 0)
RATES = Rates(1.0, 0.0, 2.0, 10.0, 100.0)
SPEC = KeySpec(KeyScheme.VLLM, 16)
LAYOUT = LayoutContract("qwen3_vl", "f1", exact=True)
CONTRACT = WorkerContract("vllm", "0.32.0", 16, KeyScheme.VLLM, "m", 4096, layouts=(LAYOUT,))
# 100 tokens, 6 full blocks; a picture of 40 tokens at [33, 73) lies in blocks 2, 3 and 4.
VIEW = KeyedView(np.arange(1, 7, dtype="<u8").tobytes(), (2, 3, 4), ((73, 40),))
QUERY = RouteQuery(
    DecisionId("d"), {SPEC: VIEW}, num_tokens=100, media_tokens=40, layout="f1", first_media_offset=33
)


def scored(
    leading: Leading = COLD, contract: WorkerContract = CONTRACT, query: RouteQuery = QUERY, **more
) -> CandidateScore:
    given = {"load": WorkerLoad(), "engine": EngineLoad(), "rates": RATES} | more
    earned = credit(contract, query, distrusted=False)
    return score(A, contract, query, credit=earned, leading=leading, **given)


def test_a_repeat_earns_every_full_block_but_the_last():
    assert usable_blocks(6, num_tokens=96, block_size=16, drops_last=False) == 5


def test_a_repeat_with_one_token_over_earns_every_full_block():
    assert usable_blocks(6, num_tokens=97, block_size=16, drops_last=False) == 6


def test_an_engine_that_drops_the_last_matched_block_earns_one_less():
    assert usable_blocks(6, num_tokens=97, block_size=16, drops_last=True) == 5
    assert usable_blocks(0, num_tokens=97, block_size=16, drops_last=True) == 0


def test_an_empty_prompt_earns_nothing():
    assert usable_blocks(3, num_tokens=0, block_size=16, drops_last=False) == 0


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 50), st.integers(1, 500), st.integers(1, 32), st.booleans())
def test_usable_blocks_are_the_longest_prefix_that_leaves_a_token(held, num_tokens, block_size, drops_last):
    lengths = [b for b in range(held + 1) if b * block_size <= num_tokens - 1]
    assert usable_blocks(held, num_tokens, block_size, drops_last) == max(0, max(lengths) - drops_last)


def test_media_that_the_cached_prefix_covers_wholly_need_no_encoder():
    view = KeyedView(b"", (), ((40, 30), (90, 50)))
    assert [encode_tokens_left(view, 80, cached) for cached in (0, 39, 40, 89, 90)] == [80, 80, 50, 50, 0]


def test_media_of_unknown_layout_always_need_the_encoder():
    assert encode_tokens_left(KeyedView(b"", (), ((40, 30),)), 100, 1000) == 70
    assert encode_tokens_left(None, 100, 1000) == 100


def test_waiting_is_for_the_prompts_and_media_ahead():
    assert wait_ms(RATES, WorkerLoad(prefill_tokens=10, encode_tokens=5, active_requests=9)) == 20.0


def test_attention_grows_with_the_square_of_the_prompt_less_what_is_cached():
    rates = replace(RATES, attention_ms_per_kilotoken2=8.0)
    assert prefill_ms(rates, 2000, 1000) == 1000 + 8.0 * (4 - 1)


def test_pressure_counts_the_busier_of_bookings_and_engine_and_a_full_cache():
    engine = EngineLoad(num_running=2, num_waiting=1, kv_usage=0.5)
    assert pressure_ms(RATES, WorkerLoad(active_requests=1), engine, 0.0) == 30.0 + 25.0
    assert pressure_ms(RATES, WorkerLoad(active_requests=5), engine, 0.0) == 50.0 + 25.0


def test_the_rates_come_from_the_configuration_each_in_its_place():
    config = RouterConfig(
        prefill_ms_per_token=1,
        attention_ms_per_kilotoken2=2,
        encode_ms_per_token=3,
        decode_ms_per_request=4,
        kv_pressure_ms=5,
        crowding=6,
    )
    assert Rates.from_config(config) == Rates(1, 2, 3, 4, 5, 6)


def test_a_cold_worker_computes_everything():
    cold = scored()
    assert (cold.overlap_blocks, cold.total_blocks, cold.media_overlap_blocks, cold.media_total_blocks) == (
        0,
        6,
        0,
        3,
    )
    assert (cold.prefill_ms, cold.encode_ms, cold.wait_ms, cold.pressure_ms) == (100.0, 80.0, 0.0, 0.0)


def test_a_prefix_that_ends_within_the_picture_saves_prefill_but_no_encoding():
    half = scored(Leading(4, 4))
    assert (half.overlap_blocks, half.media_overlap_blocks) == (4, 2)
    assert (half.prefill_ms, half.encode_ms) == (36.0, 80.0)


def test_a_prefix_that_covers_the_picture_saves_its_encoding():
    assert scored(Leading(5, 5)).encode_ms == 0.0


def test_expected_blocks_count_in_the_cost_but_not_in_the_overlap():
    soon = scored(Leading(1, 6))
    assert (soon.overlap_blocks, soon.expected_blocks, soon.media_overlap_blocks) == (1, 6, 0)
    assert (soon.prefill_ms, soon.encode_ms) == (4.0, 0.0)


def test_the_cost_is_the_sum_of_its_terms():
    load = WorkerLoad(prefill_tokens=7, active_requests=1)
    assert scored(Leading(5, 5), load=load).cost_ms == 7.0 + 0.0 + 20.0 + 10.0


def test_a_worker_without_keys_for_its_spec_earns_nothing_by_name():
    other = replace(CONTRACT, block_size=32)
    assert credit(other, QUERY, distrusted=False) == Credit(0, (DegradeReason.CONTRACT_MISSING,))
    assert scored(Leading(6, 6), contract=other).overlap_blocks == 0


@pytest.mark.parametrize(
    "groups", [("full_attention", "new_kind"), ("chunked_local_attention",), ("sliding_window",)]
)
def test_cache_groups_without_a_prediction_earn_nothing_by_name(groups):
    contract = replace(CONTRACT, kv_groups=tuple(KvGroup(kind, index=n) for n, kind in enumerate(groups)))
    assert credit(contract, QUERY, distrusted=False) == Credit(0, (DegradeReason.KV_CACHE_GROUPS,))


@pytest.mark.parametrize(
    ("layouts", "reason"),
    [
        ((), DegradeReason.CONTRACT_MISSING),
        ((replace(LAYOUT, fingerprint="f2"),), DegradeReason.CONTRACT_MISMATCH),
        ((replace(LAYOUT, exact=False),), DegradeReason.CONTRACT_MISMATCH),
        (
            (replace(LAYOUT, exact=False, reason=DegradeReason.PLACEHOLDER_MISMATCH),),
            DegradeReason.PLACEHOLDER_MISMATCH,
        ),
        (
            (replace(LAYOUT, fingerprint="", exact=False, reason=DegradeReason.UNSUPPORTED_FAMILY),),
            DegradeReason.UNSUPPORTED_FAMILY,
        ),
    ],
)
def test_a_contract_that_does_not_agree_earns_the_blocks_before_the_first_picture_only(layouts, reason):
    contract = replace(CONTRACT, layouts=layouts)
    assert credit(contract, QUERY, distrusted=False) == Credit(2, (reason,))
    partly = scored(Leading(6, 6), contract=contract)
    assert (partly.overlap_blocks, partly.expected_blocks, partly.reasons) == (2, 2, (reason,))


def test_a_distrusted_layout_earns_the_blocks_before_the_first_picture_only():
    assert credit(CONTRACT, QUERY, distrusted=True) == Credit(2, (DegradeReason.LENGTH_DISTRUST,))


def test_text_needs_no_layout():
    text = replace(QUERY, layout=None, first_media_offset=None)
    assert credit(replace(CONTRACT, layouts=()), text, distrusted=False) == Credit(6)


def test_a_worker_without_events_is_named_and_keeps_its_expected_blocks():
    quiet = scored(Leading(0, 6), contract=replace(CONTRACT, publishes_events=False))
    assert (quiet.overlap_blocks, quiet.expected_blocks) == (0, 6)
    assert quiet.reasons == (DegradeReason.KV_EVENTS_OFF,)


def test_a_share_of_the_requests_own_computing_counts_for_those_it_delays():
    rates = replace(RATES, crowding=0.25)
    alone = pressure_ms(rates, WorkerLoad(), EngineLoad(), 0.0)
    assert pressure_ms(rates, WorkerLoad(), EngineLoad(), 80.0) == alone + 20.0
