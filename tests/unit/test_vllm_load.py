"""What vLLM's ranks say of their own load is kept apart."""

from __future__ import annotations

from types import SimpleNamespace

from deployments.engines.vllm_load import LoadWatch
from sightline_types import EngineLoad


def stats(running: int, waiting: int, usage: float) -> SimpleNamespace:
    return SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=usage)


def test_each_rank_has_a_load_of_its_own_and_none_before_its_first_word() -> None:
    watch = LoadWatch()
    watch.note(1, stats(2, 3, 0.5))
    assert watch.last(1) == EngineLoad(2, 3, 0.5)
    assert watch.last(0) is None


def test_an_output_without_statistics_leaves_the_last_word() -> None:
    watch = LoadWatch()
    watch.note(0, stats(1, 0, 0.25))
    watch.note(0, None)
    assert watch.last(0) == EngineLoad(1, 0, 0.25)
