"""What a request would cost on a worker: expected milliseconds until its first token, plus what the choice
takes from others.

    cost = wait (prompts and media ahead of it)
         + encode (media that neither a cached prefix nor the encoder cache covers)
         + prefill (tokens not cached; attention grows with the square of the prompt)
         + pressure (requests in decode, KV cache nearly full, a share of the computing itself, less what a
           copy that is due saves others)

Functions of their arguments only, compiled where numba is installed.
"""

from __future__ import annotations

from typing import NamedTuple

from router.compiling import compiled
from router.config import RouterConfig

__all__ = ["Weights", "prefill_ms", "pressure_ms", "wait_ms"]


class Weights(NamedTuple):
    """What does not differ between workers; units as in `RouterConfig`.

    strange_prompt_tokens: of a prompt that waits at an engine without a booking of ours, on average.
    """

    attention_ms_per_kilotoken2: float
    decode_ms_per_request: float
    saturation_requests: float
    kv_pressure_ms: float
    crowding: float
    lower_tier_credit: float
    strange_prompt_tokens: float = 0.0
    crowding_requests: float = 5.0
    sharers_per_copy: float = 8.0

    @classmethod
    def from_config(cls, config: RouterConfig) -> Weights:
        return cls(
            config.attention_ms_per_kilotoken2,
            config.decode_ms_per_request,
            config.saturation_requests,
            config.kv_pressure_ms,
            config.crowding,
            config.lower_tier_credit,
            crowding_requests=config.crowding_requests,
            sharers_per_copy=config.sharers_per_copy,
        )


@compiled
def wait_ms(prefill_rate: float, encode_rate: float, prefill_tokens: float, encode_tokens: float) -> float:
    """Until the prompts and media ahead are computed. Rates in milliseconds per token."""
    return prefill_rate * prefill_tokens + encode_rate * encode_tokens


@compiled
def prefill_ms(rate: float, attention: float, num_tokens: float, cached_tokens: float) -> float:
    """To compute tokens [cached_tokens, num_tokens): linear, plus attention's quadratic part (milliseconds
    per squared thousand tokens)."""
    squares = (num_tokens * num_tokens - cached_tokens * cached_tokens) / 1e6
    return rate * (num_tokens - cached_tokens) + attention * squares


@compiled
def pressure_ms(
    weights: Weights, active_requests: float, kv_usage: float, computing_ms: float, spared_ms: float = 0.0
) -> float:
    """What the active requests and a full KV cache cost, and what this request's own computing costs others.

    Active requests cost more than their number: at `saturation_requests` each further one costs three
    times the first, so that a prefix that everybody shares does not hold everybody on one worker, where
    the saved prefill is the same for all but the decode steps grow.
    The last term is what the request's own computing takes from the others: it stands still for each that
    runs there or waits. So a cold worker with few requests is worth its recomputing before one that holds
    everything and everybody, and among equally busy ones the cache decides. It is not 0 on an idle worker:
    else waiting for a twin's prefill and doing it again there would cost the same.
    kv_usage: 0 to 1, more where more is booked than fits. computing_ms: this request's encode and prefill.
    spared_ms: what of that others answer for, who will use it (`router.copies`).
    """
    decoding = weights.decode_ms_per_request * active_requests
    decoding *= 1.0 + active_requests / weights.saturation_requests
    delaying = (
        weights.crowding * (1.0 + active_requests / weights.crowding_requests) * (computing_ms - spared_ms)
    )
    return decoding + weights.kv_pressure_ms * kv_usage * kv_usage + delaying - spared_ms
