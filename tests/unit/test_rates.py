"""How fast a worker is, learned from what its requests took."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config import RouterConfig
from router.rates import Observation, Rate, WorkerRates, effective_rate

CONFIG = RouterConfig(prefill_ms_per_token=0.1, encode_ms_per_token=0.1, rate_gain=0.05, rate_memory_s=100)
SIZES = (40, 90, 400, 1000, 3000)


def learned(*seen: Observation, config: RouterConfig = CONFIG) -> WorkerRates:
    rates = WorkerRates.from_config(config)
    for observation in seen:
        rates.learn(observation, 0.0, config)
    return rates


def prefill(rates: WorkerRates, now: float = 0.0) -> float:
    return rates.prefill(now, CONFIG.rate_memory_s).value


def encode(rates: WorkerRates, now: float = 0.0) -> float:
    return rates.encode(now, CONFIG.rate_memory_s).value


def starved(random: Random, slower: float = 1.0) -> list[Observation]:
    """60 prompts, most of them short, on a worker that must wait for a processor now and then."""
    seen = []
    for _ in range(60):
        tokens = random.randint(32, 200) if random.random() < 0.7 else random.randint(1000, 8000)
        stall = random.expovariate(1 / 16) + (random.expovariate(1 / 150) if random.random() < 0.15 else 0)
        seen.append(
            Observation(slower * (5.0 + 0.1 * tokens) * random.lognormvariate(0, 0.25) + stall, tokens)
        )
    return seen


def test_a_rate_approaches_what_is_measured():
    rates = learned(*[Observation(400.0, 1000)] * 60)
    assert prefill(rates) == pytest.approx(0.4, rel=0.08)
    assert encode(rates) == pytest.approx(0.1)


def test_what_every_request_takes_is_not_taken_for_a_price_of_its_tokens():
    rates = learned(*[Observation(30.0 + 0.1 * tokens, tokens) for tokens in SIZES * 12])
    assert prefill(rates) == pytest.approx(0.1, rel=0.15)
    assert rates.fixed_ms == pytest.approx(30.0, rel=0.25)


def test_short_prompts_alone_move_the_fixed_part_and_not_the_rate():
    rates = learned(*[Observation(25.0, 40)] * 60)
    assert prefill(rates) < 0.15, "25 ms / 40 tokens would be 0.6"
    assert rates.fixed_ms > 15.0


def test_one_outlier_moves_a_rate_by_a_tenth_at_most_whatever_its_size():
    usual = [Observation(100.0, 1000)] * 10
    before, after = learned(*usual), learned(*usual, Observation(1e9, 1000))
    assert prefill(before) < prefill(after) <= 1.1 * prefill(before)


def test_prefill_and_encoding_are_told_apart():
    seen = [Observation(0.1 * text + 0.3 * media, text, media) for text, media in ((500, 0), (800, 900))]
    rates = learned(*seen * 40)
    assert prefill(rates) == pytest.approx(0.1, rel=0.1)
    assert encode(rates) == pytest.approx(0.3, rel=0.1)


def test_the_quadratic_part_is_not_taken_for_the_linear():
    rates = learned(*[Observation(100.0 + 900.0, 1000, attention_ms=900.0)] * 10)
    assert prefill(rates) == pytest.approx(0.1)


def test_without_news_what_was_learned_is_forgotten_by_halves():
    rates = learned(*[Observation(400.0, 1000)] * 60)
    difference = prefill(rates) - 0.1
    assert prefill(rates, 100.0) == pytest.approx(0.1 + difference / 2)
    assert prefill(rates, 1e6) == pytest.approx(0.1)


def test_a_slow_past_that_was_forgotten_does_not_come_back_with_the_next_measurement():
    rates = learned(*[Observation(400.0, 1000)] * 60)
    forgotten = prefill(rates, 1e6)
    rates.learn(Observation(100.0, 1000), 1e6, CONFIG)
    assert prefill(rates, 1e6) == pytest.approx(forgotten, rel=0.02)


def test_a_gain_of_zero_keeps_the_configured_rates():
    rates = learned(Observation(400.0, 1000), config=CONFIG.model_copy(update={"rate_gain": 0.0}))
    assert (prefill(rates), rates.prefill_samples) == (0.1, 0)


def test_a_rate_that_is_configured_as_nothing_stays_nothing():
    config = CONFIG.model_copy(update={"prefill_ms_per_token": 0.0})
    rates = learned(*[Observation(400.0, 1000, encode_tokens=900)] * 30, config=config)
    assert prefill(rates) == 0.0
    assert encode(rates) > 0.3


def test_a_changed_start_begins_anew_and_an_unchanged_one_keeps_what_was_learned():
    rates = learned(Observation(400.0, 1000))
    before = prefill(rates)
    rates.configure(CONFIG)
    assert prefill(rates) == before
    rates.configure(CONFIG.model_copy(update={"prefill_ms_per_token": 0.7}))
    assert (prefill(rates), rates.prefill_samples) == (0.7, 0)


observations = st.builds(
    Observation,
    elapsed_ms=st.floats(-10, 1e12),
    prefill_tokens=st.integers(0, 1 << 20),
    encode_tokens=st.integers(0, 1 << 20),
    attention_ms=st.floats(0, 1e6),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(observations, max_size=30), st.floats(0, 1))
def test_rates_stay_within_their_bounds_whatever_is_measured(seen, gain):
    rates = learned(*seen, config=CONFIG.model_copy(update={"rate_gain": gain}))
    for rate in (rates.prefill(0.0, 10.0), rates.encode(0.0, 10.0)):
        assert 0.1 / 50 <= rate.value <= 0.1 * 50
        assert rate.error >= 0
    assert rates.fixed_ms >= 0


@pytest.mark.parametrize("seed", range(5))
def test_equal_workers_on_a_starved_machine_count_as_equal_and_a_slow_one_does_not(seed):
    random = Random(seed)
    rates = [learned(*starved(random)) for _ in range(7)] + [learned(*starved(random, slower=3.0))]
    pool = [each.prefill(0.0, 100.0) for each in rates]
    effective = [effective_rate(own, pool) for own in pool]
    assert len(set(effective[:7])) == 1
    assert effective[0] == pytest.approx(0.1, rel=0.5)
    assert effective[7] > 1.8 * effective[0]


def test_workers_of_about_the_same_speed_count_as_equal_and_a_slow_one_does_not():
    pool = [Rate(0.100), Rate(0.104), Rate(0.096), Rate(0.300)]
    assert len({effective_rate(own, pool) for own in pool[:3]}) == 1
    assert effective_rate(Rate(0.300), pool) == 0.300


def test_a_difference_that_may_be_chance_does_not_count():
    pool = [Rate(0.100, 0.02), Rate(0.104, 0.02), Rate(0.160, 0.04)]
    assert effective_rate(pool[2], pool) == 0.104
    assert effective_rate(Rate(0.160, 0.02), pool) == 0.160


def test_workers_that_were_never_measured_count_as_those_that_were():
    fast, unknown = learned(*[Observation(0.01 * 2000, 2000)] * 20), learned()
    pool = [rates.prefill(0.0, 100.0) for rates in (fast, unknown)]
    assert effective_rate(pool[1], pool) == effective_rate(pool[0], pool) == pool[0].value < 0.05
    encoding = [rates.encode(0.0, 100.0) for rates in (fast, unknown)]
    assert [effective_rate(own, encoding) for own in encoding] == [0.1, 0.1]


def test_a_slow_worker_counts_as_any_other_once_its_slowness_is_long_past():
    slow, others = learned(*[Observation(0.5 * 2000, 2000)] * 30), [Rate(0.1, 0.001)] * 2
    now, later = slow.prefill(0.0, 100.0), slow.prefill(1000.0, 100.0)
    assert effective_rate(now, [now, *others]) == now.value > 0.3
    assert effective_rate(later, [later, *others]) == 0.1
