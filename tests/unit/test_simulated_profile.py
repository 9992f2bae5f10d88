"""How long a step takes, and how a profile is found from measurements."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simulation import PRESETS, FitError, Measurement, Profile, StepWork, fit, preset

MEASURED = Profile(
    prefill_base_ms=9.0,
    prefill_ms_per_token=0.05,
    prefill_ms_per_token_context=2e-6,
    decode_base_ms=8.0,
    decode_ms_per_request=0.04,
    decode_ms_per_context_token=5e-5,
    encode_base_ms=3.0,
    encode_ms_per_token=0.02,
    encode_ms_per_token2=4e-6,
)
SIZES = (64, 512, 2048, 8192)


def sweep(profile: Profile, noise: float = 0.0) -> list[Measurement]:
    """What an endpoint with this profile would be measured at; every other row is late by `noise`."""
    rows = [
        Measurement("prefill", 1.0, tokens=n, context=c)
        for n, c in itertools.product(SIZES, (0, 4096, 16384))
    ]
    rows += [
        Measurement("decode", 1.0, batch=b, context=c) for b, c in itertools.product((1, 8, 64), (128, 8192))
    ]
    rows += [Measurement("encode", 1.0, tokens=n) for n in SIZES]
    late = itertools.cycle((1 + noise, 1 - noise))
    return [
        Measurement(r.kind, profile.step_ms(r.work) * next(late), r.tokens, r.context, r.batch) for r in rows
    ]


def test_a_fit_recovers_the_profile_of_a_synthetic_endpoint() -> None:
    found = fit(sweep(MEASURED))
    for name, value in found.profile:
        if isinstance(value, float):
            assert value == pytest.approx(getattr(MEASURED, name), rel=1e-6), name
    assert max(found.errors.values()) < 1e-9


def test_a_noisy_endpoint_is_fitted_within_its_noise() -> None:
    found = fit(sweep(MEASURED, noise=0.05))
    assert max(found.errors.values()) < 0.06
    for row in sweep(MEASURED):
        assert found.profile.step_ms(row.work) == pytest.approx(row.ms, rel=0.12)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([0.0, 1e-4, 0.3, 7.0]), min_size=9, max_size=9))
def test_whatever_the_profile_no_fitted_number_is_negative(numbers: list[float]) -> None:
    names = [name for name in Profile.model_fields if name.endswith(("ms", "token", "context", "token2"))]
    profile = Profile(**dict(zip(names, numbers, strict=False)))
    rows = [row for row in sweep(profile) if row.ms > 0]
    kinds = {row.kind for row in rows}
    if not kinds or any(sum(row.kind == kind for row in rows) < 3 for kind in kinds):
        return
    found = fit(rows)
    for row in rows:
        assert found.profile.step_ms(row.work) == pytest.approx(row.ms, rel=1e-4)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([], "no measurements"),
        ([Measurement("decode", 1.0, batch=1)] * 2, "2 decode rows"),
        ([Measurement("encode", 0.0, tokens=3)] * 3, "0.0 ms"),
    ],
)
def test_measurements_that_settle_nothing_are_refused(rows: list[Measurement], named: str) -> None:
    with pytest.raises(FitError, match=named):
        fit(rows)


def test_a_mixed_step_reads_the_weights_once() -> None:
    prefill = StepWork(prefill_tokens=100, prefill_context=5000)
    decode = StepWork(decode_requests=3, decode_context=900)
    both = StepWork(prefill_tokens=100, prefill_context=5000, decode_requests=3, decode_context=900)
    apart = MEASURED.step_ms(prefill) + MEASURED.step_ms(decode)
    assert MEASURED.step_ms(both) == pytest.approx(apart - 8.0)


def test_presets_say_where_they_come_from_and_faster_hardware_is_faster() -> None:
    assert all(one.name == name and one.source for name, one in PRESETS.items())
    work = StepWork(prefill_tokens=4000, prefill_context=8_000_000)
    slow, fast = preset("a100-qwen3-vl-8b"), preset("h100-qwen3-vl-8b")
    assert fast.step_ms(work) < slow.step_ms(work)
    assert preset("instant").step_ms(work) == 0


def test_an_unknown_preset_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"called 'h1000'; known: instant.*h100-qwen3-vl-8b"):
        preset("h1000")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_a_profile_that_never_ends_is_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="decode_base_ms"):
        Profile(decode_base_ms=value)
