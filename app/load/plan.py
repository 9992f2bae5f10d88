"""Everything that a run is told, checked; plain data that another process can be handed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.load.run import Limit, OpenLoop
from app.load.target import Target
from app.load.workload import Workload

__all__ = ["Plan"]

#: Requests a second that bodies are made for in a closed loop, which may take fewer.
_FAST = 500.0
#: Tokens of text that are made before the run at most: some 100 MB, and seconds. The rest is made in it.
_PREPARED_TOKENS = 1 << 24


@dataclass(frozen=True)
class Plan:
    """profile: the workload's name. concurrency: of the closed loop; open: the open one, where wanted.

    warmup: requests before the measured ones (None: as many as repeat, and twice the concurrency at least).
    extra: further fields of each request's body. processes: that send, sharing concurrency and rate.
    """

    target: Target
    profile: str
    workload: Workload
    limit: Limit
    concurrency: int = 16
    open: OpenLoop | None = None
    warmup: int | None = None
    model: str | None = None
    max_tokens: int = 8
    is_streamed: bool = True
    wants_usage: bool = True
    calibrates: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0
    seed: str = "0"
    picture_bind: str = "127.0.0.1"
    picture_host: str | None = None
    processes: int = 1

    @property
    def warmup_requests(self) -> int:
        if self.warmup is not None:
            return self.warmup
        return max(self.workload.repeats, 2 * self.concurrency)

    @property
    def prepared_requests(self) -> int:
        """Requests to make before the run; of a run by time, as many as a fast endpoint would take."""
        most = max(1, _PREPARED_TOKENS // self.workload.words)
        if self.limit.requests is not None:
            return min(most, self.limit.requests)
        a_second = self.open.rate if self.open is not None else _FAST
        expected = min(float(most), a_second * (self.limit.duration_s or 0.0))
        return min(most, round(expected + 5 * math.sqrt(expected)))  # arrivals scatter
