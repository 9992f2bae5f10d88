"""Whether the pool has room for a request, where limits are configured."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from router.columns import Rows
from router.config import AdmissionConfig
from router.keys import RouterError

__all__ = ["Overloaded", "admit"]


class Overloaded(RouterError):
    """Every worker is past its limit. retry_after_s: when the first of them should have room."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


def admit(config: AdmissionConfig, loads: Rows, priority: int) -> npt.NDArray[np.intp]:
    """The places in `loads` (`WORKER` rows) of those with room. priority: above 0 the limits do not
    hold, below 0 half of them do.

    Raises:
        Overloaded: nobody has room.
    """
    if priority > 0 or not config.is_limited:
        return np.arange(len(loads))
    share = 0.5 if priority < 0 else 1.0
    requests = np.maximum(loads["waiting"], loads["engine_waiting"])
    tokens = loads["prefill_tokens"] + loads["encode_tokens"]
    most_requests = share * (config.max_waiting_requests_per_worker or math.inf)
    most_tokens = share * (config.max_waiting_tokens_per_worker or math.inf)
    # Where nothing waits the largest request is taken: nowhere else would it ever be.
    room = (requests == 0) | ((requests < most_requests) & (tokens < most_tokens))
    if room.any():
        return np.flatnonzero(room)
    raise Overloaded(_explain(config, requests, tokens, share), _retry_after_s(loads))


def _retry_after_s(loads: Rows) -> int:
    prefill = loads["prefill_ms_per_token"] * loads["prefill_tokens"]
    waiting_ms = prefill + loads["encode_ms_per_token"] * loads["encode_tokens"]
    return max(1, math.ceil(float(waiting_ms.min()) / 1000))


def _explain(
    config: AdmissionConfig, requests: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], share: float
) -> str:
    limits = []
    if config.max_waiting_requests_per_worker is not None:
        limits.append(
            f"{int(requests.min())} requests wait at the least busy worker, the limit is "
            f"{math.floor(share * config.max_waiting_requests_per_worker)} "
            "(router.admission.max_waiting_requests_per_worker)"
        )
    if config.max_waiting_tokens_per_worker is not None:
        limits.append(
            f"{int(tokens.min())} tokens wait at the least busy worker, the limit is "
            f"{math.floor(share * config.max_waiting_tokens_per_worker)} "
            "(router.admission.max_waiting_tokens_per_worker)"
        )
    return f"all {len(requests)} workers are full: " + "; ".join(limits)
