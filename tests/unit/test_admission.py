"""When the pool is full."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from router import Overloaded
from router.admission import admit
from router.columns import WORKER
from router.config import AdmissionConfig

TWO_REQUESTS = AdmissionConfig(max_waiting_requests_per_worker=2)
TOKENS = AdmissionConfig(max_waiting_tokens_per_worker=100)


def loads(*waiting: int, tokens=(), engine=()) -> np.ndarray:
    rows = np.zeros(len(waiting), WORKER)
    rows["waiting"] = waiting
    rows["prefill_ms_per_token"] = 100.0
    rows["prefill_tokens"][: len(tokens)] = tokens
    rows["engine_waiting"][: len(engine)] = engine
    return rows


def test_without_limits_everybody_has_room():
    assert admit(AdmissionConfig(), loads(1000, 1000), 0).tolist() == [0, 1]


def test_a_worker_past_its_limit_gets_no_more_while_another_has_room():
    assert admit(TWO_REQUESTS, loads(2, 1), 0).tolist() == [1]


def test_what_the_engine_says_of_its_queue_counts_too():
    assert admit(TWO_REQUESTS, loads(0, 1, engine=(2, 0)), 0).tolist() == [1]


def test_a_request_is_refused_with_figures_and_a_time_when_all_are_full():
    with pytest.raises(Overloaded, match=r"2 requests wait .* the limit is 2") as refusal:
        admit(TWO_REQUESTS, loads(2, 3, tokens=(35, 90)), 0)
    assert refusal.value.retry_after_s == 4  # 35 tokens of 100 ms
    assert pickle.loads(pickle.dumps(refusal.value)).retry_after_s == 4


def test_waiting_tokens_are_limited_but_an_idle_worker_takes_any_request():
    assert admit(TOKENS, loads(1, 1, tokens=(100, 99)), 0).tolist() == [1]
    assert admit(TOKENS, loads(0, 1, tokens=(0, 500)), 0).tolist() == [0]


def test_a_high_priority_passes_the_limits_and_a_low_one_is_refused_at_half():
    assert admit(TWO_REQUESTS, loads(9), 1).tolist() == [0]
    with pytest.raises(Overloaded, match="the limit is 1"):
        admit(TWO_REQUESTS, loads(1), -1)
