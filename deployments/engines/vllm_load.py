"""What vLLM says of its own load, rank by rank."""

from __future__ import annotations

from typing import Any

from sightline_types import EngineLoad

__all__ = ["LoadWatch"]


class LoadWatch:
    """Each rank's last word about itself: it rides on every output, at no extra cost."""

    def __init__(self) -> None:
        self._last: dict[int, EngineLoad] = {}

    def last(self, rank: int) -> EngineLoad | None:
        """None before the rank's first output."""
        return self._last.get(rank)

    def note(self, rank: int, stats: Any) -> None:
        """stats: vLLM's `SchedulerStats`, or None."""
        if stats is not None:
            usage = float(stats.kv_cache_usage)
            self._last[rank] = EngineLoad(stats.num_running_reqs, stats.num_waiting_reqs, usage)

    def logger_class(self) -> type:
        """A stat logger class for `AsyncLLM`, bound to this object; vLLM makes one per rank."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        watch = self

        class Logger(StatLoggerBase):
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                self._rank = engine_index

            def record(self, scheduler_stats: Any, *args: Any, **kwargs: Any) -> None:
                watch.note(self._rank, scheduler_stats)

            def log_engine_initialized(self) -> None:
                """The replica says it itself."""

        return Logger
