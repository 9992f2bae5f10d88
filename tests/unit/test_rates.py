"""How fast a worker is, learned from what its requests took."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config import RouterConfig
from router.rates import LearnedRate, Observation, WorkerRates, effective_rate

CONFIG = RouterConfig(prefill_ms_per_token=0.1, encode_ms_per_token=0.1, rate_gain=0.2, rate_memory_s=100)


def learned(*seen: Observation, config=CONFIG) -> WorkerRates:
    rates = WorkerRates.from_config(config)
    for observation in seen:
        rates.learn(observation, 0.0, config)
    return rates


def test_a_rate_approaches_what_is_measured():
    rates = learned(*[Observation(400.0, 1000)] * 30)
    assert rates.prefill.value == pytest.approx(0.4, rel=0.02)
    assert rates.encode.value == 0.1


def test_one_outlier_moves_a_rate_by_a_tenth_at_most_whatever_its_size():
    rates = learned(*[Observation(100.0, 1000)] * 5, Observation(1e9, 1000))
    assert 0.1 < rates.prefill.value <= 0.111


def test_the_encoder_is_learned_from_what_prefill_leaves():
    rates = learned(*[Observation(100.0 + 300.0, 1000, encode_tokens=1000)] * 30)
    assert rates.prefill.value == 0.1
    assert rates.encode.value == pytest.approx(0.3, rel=0.02)


def test_a_few_tokens_say_nothing_of_a_workers_speed():
    assert learned(Observation(500.0, 10)).prefill.samples == 0


def test_the_quadratic_part_is_not_taken_for_the_linear():
    rates = learned(*[Observation(100.0 + 900.0, 1000, attention_ms=900.0)] * 10)
    assert rates.prefill.value == pytest.approx(0.1)


def test_without_news_what_was_learned_is_forgotten_by_halves():
    rates = learned(*[Observation(400.0, 1000)] * 60)
    assert rates.prefill.at_time(100.0, 100.0) == pytest.approx(0.2, rel=0.02)
    assert rates.prefill.at_time(1e6, 100.0) == pytest.approx(0.1)


def test_a_gain_of_zero_keeps_the_configured_rates():
    rates = learned(Observation(400.0, 1000), config=CONFIG.model_copy(update={"rate_gain": 0.0}))
    assert (rates.prefill.value, rates.prefill.samples) == (0.1, 0)


def test_a_changed_start_begins_anew_and_an_unchanged_one_keeps_what_was_learned():
    rates = learned(Observation(400.0, 1000))
    before = rates.prefill.value
    rates.configure(CONFIG)
    assert rates.prefill.value == before
    rates.configure(CONFIG.model_copy(update={"prefill_ms_per_token": 0.7}))
    assert (rates.prefill.value, rates.prefill.samples) == (0.7, 0)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-10, 1e12), max_size=40), st.floats(0, 1))
def test_a_rate_stays_within_its_bounds_whatever_is_measured(seen, gain):
    rate = LearnedRate.of(0.05)
    for value in seen:
        rate.learn(value, 0.0, gain=gain, memory_s=10.0)
    assert 0.05 / 50 <= rate.value <= 0.05 * 50


def test_workers_of_about_the_same_speed_count_as_equal_and_a_slow_one_does_not():
    pool = [0.100, 0.104, 0.096, 0.300]
    assert len({effective_rate(own, pool) for own in pool[:3]}) == 1
    assert effective_rate(0.300, pool) == 0.300
