"""What a request would cost on a worker, and what it may earn there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.columns import CANDIDATE, WORKER
from router.compiling import plain_of
from router.config import RouterConfig
from router.copies import DueCopy
from router.cost import Weights, prefill_ms, pressure_ms, wait_ms
from router.credit import Allowance, Extent, allowance
from router.scoring import Asked, Found, Permits, _score_all, asked, score_candidates
from router.usable import usable_blocks
from sightline_types import (
    DecisionId,
    DegradeReason,
    KeyedView,
    KeyScheme,
    KeySpec,
    KvGroup,
    LayoutContract,
    MediaId,
    MediaSpan,
    RouteQuery,
    WorkerContract,
)

WEIGHTS = Weights(0.0, 10.0, 1e9, 100.0, 0.0, 0.0)
SPEC = KeySpec(KeyScheme.VLLM, 16)
LAYOUT = LayoutContract("qwen3_vl", "f1", exact=True)
CONTRACT = WorkerContract("vllm", "0.32.0", 16, KeyScheme.VLLM, "m", 4096, layouts=(LAYOUT,))
# 100 tokens, 6 full blocks; a picture of 40 tokens at [33, 73) lies in blocks 2, 3 and 4.
VIEW = KeyedView(np.arange(1, 7, dtype="<u8").tobytes(), np.array([2, 3, 4], "<i4").tobytes(), ((73, 40),))
QUERY = RouteQuery(
    DecisionId("d"), {SPEC: VIEW}, num_tokens=100, media_tokens=40, layout="f1", first_media_offset=33
)


LOADS = ("prefill_tokens", "encode_tokens", "waiting", "requests", "decode_blocks")
TERMS = ("wait_ms", "encode_ms", "prefill_ms", "pressure_ms")


@dataclass(frozen=True)
class Case:
    """One worker: what it holds, may earn, and how busy it is."""

    held: int = 0
    expected: int = 0
    lower: int = 0
    extent: int = Extent.EVERYTHING
    shadow: int = Extent.EVERYTHING
    encoded: tuple[bool, ...] = (False,)
    drops_last: bool = False
    load: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)  # prefill, encode, waiting, requests, blocks
    engine: tuple[int, int, float] = (0, 0, 0.0)
    capacity: float = 0.0


def tables(cases, query=QUERY, view=VIEW):
    workers = np.zeros(len(cases), WORKER)
    for row, case in zip(workers, cases, strict=True):
        row["is_live"] = row["has_events"] = True
        row["block_size"], row["drops_last"], row["capacity_blocks"] = 16, case.drops_last, case.capacity
        row["prefill_ms_per_token"], row["encode_ms_per_token"] = 1.0, 2.0
        for name, value in zip(
            ("prefill_tokens", "encode_tokens", "waiting", "requests", "decode_blocks"),
            case.load,
            strict=True,
        ):
            row[name] = value
        row["engine_running"], row["engine_waiting"], row["kv_usage"] = case.engine
    found = Found(
        *(np.array([getattr(c, n) for c in cases], np.int32) for n in ("held", "expected", "lower"))
    )
    permits = Permits(
        np.array([case.extent for case in cases], np.uint8),
        np.array([case.shadow for case in cases], np.uint8),
        np.zeros(len(cases), np.uint8),
    )
    encoded = np.array([case.encoded for case in cases], dtype=np.bool_).T
    return workers, np.arange(len(cases)), asked(query, view, 16), found, permits, encoded


def scored(weights=WEIGHTS, query=QUERY, view=VIEW, **case):
    return score_candidates(*tables([Case(**case)], query, view), weights)[0]


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


def test_waiting_is_for_the_prompts_and_media_ahead():
    assert wait_ms(1.0, 2.0, 10, 5) == 20.0


def test_attention_grows_with_the_square_of_the_prompt_less_what_is_cached():
    assert prefill_ms(1.0, 8.0, 2000, 1000) == 1000 + 8.0 * (4 - 1)


def test_active_requests_cost_twice_their_number_at_saturation():
    weights = WEIGHTS._replace(saturation_requests=64.0)
    assert pressure_ms(weights, 64, 0.0, 0.0) == 2 * 64 * 10.0
    assert pressure_ms(WEIGHTS, 64, 0.0, 0.0) == pytest.approx(64 * 10.0)


def test_a_full_cache_costs_with_the_square_of_its_usage():
    assert pressure_ms(WEIGHTS, 0, 0.5, 0.0) == 25.0


def test_a_share_of_the_requests_own_computing_counts_for_each_one_that_it_delays():
    weights = WEIGHTS._replace(crowding=0.25, decode_ms_per_request=0.0)
    assert pressure_ms(weights, 0, 0.0, 80.0) == 20.0
    assert pressure_ms(weights._replace(crowding_requests=1.0), 3, 0.0, 80.0) == 80.0


def test_what_others_answer_for_is_taken_off_with_what_it_would_have_delayed():
    weights = WEIGHTS._replace(crowding=0.25, decode_ms_per_request=0.0)
    assert pressure_ms(weights, 0, 0.0, 80.0, spared_ms=60.0) == 5.0 - 60.0


def test_the_weights_come_from_the_configuration_each_in_its_place():
    config = RouterConfig(
        attention_ms_per_kilotoken2=2,
        decode_ms_per_request=4,
        saturation_requests=9,
        kv_pressure_ms=5,
        crowding=6,
        crowding_requests=7,
        sharers_per_copy=8.5,
        lower_tier_credit=0.5,
    )
    assert Weights.from_config(config) == Weights(
        2, 4, 9, 5, 6, 0.5, crowding_requests=7, sharers_per_copy=8.5
    )


def test_a_cold_worker_computes_everything():
    cold = scored()
    blocks = tuple(int(cold[name]) for name in ("overlap", "total", "media_overlap", "media_total"))
    assert blocks == (0, 6, 0, 3)
    assert (cold["prefill_ms"], cold["encode_ms"], cold["wait_ms"], cold["pressure_ms"]) == (100, 80, 0, 0)


def test_a_prefix_that_ends_within_the_picture_saves_prefill_but_no_encoding():
    half = scored(held=4, expected=4)
    assert (half["overlap"], half["media_overlap"]) == (4, 2)
    assert (half["prefill_ms"], half["encode_ms"]) == (36.0, 80.0)


def test_a_prefix_that_covers_the_picture_saves_its_encoding():
    assert scored(held=5, expected=5)["encode_ms"] == 0.0


def test_a_picture_in_the_encoder_cache_saves_its_encoding_but_no_prefill():
    warm = scored(encoded=(True,))
    assert (warm["encode_ms"], warm["encoder_cached"], warm["prefill_ms"]) == (0.0, 40, 100.0)


def test_media_of_unknown_layout_always_need_the_encoder():
    longer = replace(QUERY, media_tokens=100)
    assert scored(query=longer, held=6, expected=6)["encode_tokens"] == 60
    assert scored(query=longer, view=None, held=6)["encode_tokens"] == 100


def test_the_spans_of_a_query_say_what_each_item_needs_of_the_encoder():
    spans = (MediaSpan(0, 16, MediaId(1)), MediaSpan(20, 24, MediaId(2)))
    two = replace(QUERY, spans=spans, media_tokens=40)
    row = scored(query=two, held=1, expected=1, encoded=(False, True))
    assert (row["encode_tokens"], row["encoder_cached"]) == (0, 24)


def test_expected_blocks_count_in_the_cost_but_not_in_the_overlap():
    soon = scored(held=1, expected=6)
    assert (soon["overlap"], soon["expected"], soon["media_overlap"]) == (1, 6, 0)
    assert (soon["prefill_ms"], soon["encode_ms"]) == (4.0, 0.0)


def test_blocks_in_a_lower_tier_save_a_share_of_their_prefill_but_predict_nothing():
    weights = WEIGHTS._replace(lower_tier_credit=0.5)
    row = scored(weights, held=1, expected=1, lower=5)
    assert (row["overlap"], row["lower"], row["prefill_ms"]) == (1, 5, 100 - 16 - 0.5 * 64)


def test_pressure_counts_the_busier_of_bookings_and_engine():
    busy_engine, busy_book = (2, 1, 0.0), (0, 0, 0, 5, 0)
    assert scored(engine=busy_engine)["pressure_ms"] == pytest.approx(30.0)
    assert scored(engine=busy_engine, load=busy_book)["pressure_ms"] == pytest.approx(50.0)


def test_a_nearly_full_cache_counts_as_booked_where_the_engine_has_not_said_so_yet():
    booked = scored(load=(0, 0, 0, 0, 44), capacity=100.0)
    assert booked["pressure_ms"] == pytest.approx(100.0 * 0.5**2)  # 44 booked, 6 to come
    said = scored(engine=(0, 0, 0.74), load=(0, 0, 0, 0, 44), capacity=100.0)
    assert said["pressure_ms"] == pytest.approx(100.0 * 0.8**2)


def test_prompts_that_wait_without_a_booking_of_ours_are_waited_for():
    weights = WEIGHTS._replace(strange_prompt_tokens=50.0)
    assert scored(weights, engine=(0, 3, 0.0), load=(7, 0, 1, 1, 0))["wait_ms"] == 7 + 2 * 50


def test_the_cost_is_the_sum_of_its_terms():
    row = scored(held=5, expected=5, load=(7, 0, 1, 1, 0))
    assert row["cost_ms"] == pytest.approx(7.0 + 0.0 + 20.0 + 10.0)


def test_what_a_distrusted_worker_would_earn_is_kept_beside_what_it_earns():
    row = scored(held=6, expected=6, extent=Extent.BEFORE_MEDIA)
    assert (row["overlap"], row["expected"], row["shadow"], row["credit_blocks"]) == (2, 2, 6, 2)


# What a contract allows


@pytest.mark.parametrize(
    "groups", [("full_attention", "new_kind"), ("chunked_local_attention",), ("sliding_window",)]
)
def test_cache_groups_without_a_prediction_earn_nothing_by_name(groups):
    contract = replace(CONTRACT, kv_groups=tuple(KvGroup(kind, index=n) for n, kind in enumerate(groups)))
    nothing = Allowance(Extent.NOTHING, Extent.NOTHING, DegradeReason.KV_CACHE_GROUPS)
    assert allowance(contract, "f1") == allowance(contract, None) == nothing


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
    assert allowance(contract, "f1") == Allowance(Extent.BEFORE_MEDIA, Extent.BEFORE_MEDIA, reason)


def test_a_distrusted_layout_earns_the_blocks_before_the_first_picture_only():
    distrust = DegradeReason.LENGTH_DISTRUST
    assert allowance(CONTRACT, "f1", distrust) == Allowance(Extent.BEFORE_MEDIA, Extent.EVERYTHING, distrust)


def test_distrusted_text_earns_nothing():
    distrust = DegradeReason.CACHED_DISTRUST
    assert allowance(CONTRACT, None, distrust) == Allowance(Extent.NOTHING, Extent.EVERYTHING, distrust)


def test_text_needs_no_layout():
    assert allowance(replace(CONTRACT, layouts=()), None) == Allowance(Extent.EVERYTHING, Extent.EVERYTHING)


# The compiled pass against plain twins

_small = st.integers(0, 200)
_cases = st.builds(
    Case,
    held=st.integers(0, 8),
    expected=st.integers(0, 8),
    lower=st.integers(0, 8),
    extent=st.sampled_from(Extent),
    shadow=st.sampled_from(Extent),
    encoded=st.tuples(st.booleans(), st.booleans()),
    drops_last=st.booleans(),
    load=st.tuples(_small, _small, _small, _small, _small),
    engine=st.tuples(_small, _small, st.floats(0, 1)),
    capacity=st.sampled_from([0.0, 50.0, 1000.0]),
)
_weights = st.builds(
    Weights, *(st.floats(0, 10) for _ in range(2)), st.floats(1, 100), *(st.floats(0, 10) for _ in range(2)),
    st.floats(0, 1), st.floats(0, 500), st.floats(1, 100),
)  # fmt: skip
_copies = st.builds(DueCopy, st.integers(0, 8), st.floats(0.01, 1))
_spans = st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(0, 5), st.integers(1, 30))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(_cases, min_size=1, max_size=5),
    _weights,
    _spans,
    st.integers(0, 130),
    st.integers(0, 60),
    _copies,
)
def test_the_compiled_pass_equals_its_plain_form_and_a_naive_twin(
    cases, weights, spans, num_tokens, more, copy
):
    offset, length, gap, other = spans
    pictures = (
        MediaSpan(offset, length, MediaId(1)),
        MediaSpan(offset + length + gap, other, MediaId(2)),
    )
    query = replace(
        QUERY,
        num_tokens=num_tokens,
        media_tokens=length + other + more,
        first_media_offset=offset,
        spans=pictures,
    )
    workers, slots, request, *rest = tables(cases, query)
    request = request._replace(copy_blocks=copy.blocks, copy_share=copy.share)
    given_tables = (workers, slots, request, *rest)
    compiled = score_candidates(*given_tables, weights)
    workers, slots, *rest = given_tables
    plain = np.zeros(len(cases), CANDIDATE)
    plain_of(_score_all)(workers.view(np.recarray), slots, *rest, weights, plain.view(np.recarray))
    for name in CANDIDATE.names:
        assert compiled[name].tolist() == pytest.approx(plain[name].tolist(), rel=1e-9, abs=1e-9), name
    for case, row in zip(cases, compiled, strict=True):
        check_naively(case, row, query, weights, copy)


def check_naively(case: Case, row, query: RouteQuery, weights: Weights, copy: DueCopy) -> None:
    """Written from the design's words, apart from the code."""
    n, size = query.num_tokens, 16
    blocks = {Extent.NOTHING: 0, Extent.BEFORE_MEDIA: min(6, query.first_media_offset // size)}
    allowed = blocks.get(case.extent, 6)

    def usable(held):
        fits = max((b for b in range(min(held, allowed) + 1) if b * size <= n - 1), default=0)
        return max(0, fits - case.drops_last)

    held, coming = usable(case.held), usable(case.expected)
    cached = max(held, coming)
    assert (row["overlap"], row["expected"]) == (held, coming)
    left, media = query.media_tokens, zip(query.spans, case.encoded, strict=True)
    left -= sum(span.length for span, warm in media if span.end <= cached * size or warm)
    assert row["encode_ms"] == pytest.approx(2.0 * left)
    effective = size * (cached + weights.lower_tier_credit * max(0, max(usable(case.lower), held) - cached))
    quadratic = weights.attention_ms_per_kilotoken2 * (n**2 - effective**2) / 1e6
    assert row["prefill_ms"] == pytest.approx(n - effective + quadratic)
    prefill, encode, waiting, requests, _ = case.load
    strange = max(0, case.engine[1] - waiting) * weights.strange_prompt_tokens
    assert row["wait_ms"] == pytest.approx(prefill + strange + 2.0 * encode)
    active = max(requests, case.engine[0] + case.engine[1])
    usage = case.engine[2]
    if case.capacity:
        usage = max(usage, case.load[4] / case.capacity) + (n // size - held) / case.capacity
    pressure = weights.decode_ms_per_request * active * (1 + active / weights.saturation_requests)
    pressure += weights.kv_pressure_ms * usage**2
    crowd = weights.crowding * (1 + active / weights.crowding_requests)
    due = max(usable(copy.blocks), cached)
    media = zip(query.spans, case.encoded, strict=True)
    later = sum(s.length for s, warm in media if cached * size < s.end <= due * size and not warm)
    begun = min(effective, due * size)
    spared = due * size - begun + 2.0 * min(later, left)
    spared += weights.attention_ms_per_kilotoken2 * ((due * size) ** 2 - begun**2) / 1e6
    spared *= 1 - copy.share
    pressure += crowd * (row["encode_ms"] + row["prefill_ms"] - spared) - spared
    assert row["pressure_ms"] == pytest.approx(pressure)
    assert row["cost_ms"] == pytest.approx(
        sum(row[f"{t}_ms"] for t in ("wait", "encode", "prefill", "pressure"))
    )


def test_what_is_asked_counts_the_keys_before_the_first_picture():
    request = asked(QUERY, VIEW, 16)
    assert isinstance(request, Asked)
    assert (request.num_keys, request.prefix_keys, request.media_blocks.tolist()) == (6, 2, [2, 3, 4])
