"""What a request would cost on a worker: expected milliseconds until its first token, plus what the choice
takes from others.

    cost = wait (prompts and media ahead of it) + encode (media that no cached prefix covers)
         + prefill (tokens not cached)
         + pressure (requests in decode, KV cache nearly full, a share of the computing itself)

Functions of their arguments only.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from router.config import RouterConfig
from router.credit import Credit
from router.index import Leading
from router.load import WorkerLoad
from router.usable import usable_blocks
from sightline_types import (
    CandidateScore,
    DegradeReason,
    EngineLoad,
    KeyedView,
    RouteQuery,
    WorkerContract,
    WorkerId,
)

__all__ = [
    "Rates",
    "encode_tokens_left",
    "prefill_ms",
    "pressure_ms",
    "score",
    "wait_ms",
]


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a worker is; units as in `RouterConfig`."""

    prefill_ms_per_token: float
    attention_ms_per_kilotoken2: float
    encode_ms_per_token: float
    decode_ms_per_request: float
    kv_pressure_ms: float
    crowding: float = 0.0

    @classmethod
    def from_config(cls, config: RouterConfig) -> Rates:
        return cls(
            config.prefill_ms_per_token,
            config.attention_ms_per_kilotoken2,
            config.encode_ms_per_token,
            config.decode_ms_per_request,
            config.kv_pressure_ms,
            config.crowding,
        )


def encode_tokens_left(view: KeyedView | None, media_tokens: int, cached_tokens: int) -> int:
    """Encoder tokens of the media that a cached prefix of `cached_tokens` does not wholly cover; media of
    unknown layout are never covered."""
    ends = view.media_ends if view is not None else ()
    return max(0, media_tokens - sum(tokens for end, tokens in ends if end <= cached_tokens))


def wait_ms(rates: Rates, load: WorkerLoad) -> float:
    """Until the prompts and media ahead are computed."""
    prefill = rates.prefill_ms_per_token * load.prefill_tokens
    return prefill + rates.encode_ms_per_token * load.encode_tokens


def prefill_ms(rates: Rates, num_tokens: int, cached_tokens: int) -> float:
    """To compute tokens [cached_tokens, num_tokens): linear, plus attention's quadratic part."""
    squares = (num_tokens**2 - cached_tokens**2) / 1e6
    linear = rates.prefill_ms_per_token * (num_tokens - cached_tokens)
    return linear + rates.attention_ms_per_kilotoken2 * squares


def pressure_ms(rates: Rates, load: WorkerLoad, engine: EngineLoad, computing_ms: float) -> float:
    """What the active requests and a full KV cache cost, and what this request's own computing costs others.

    The last makes work that another request does anyway worth a wait: without it, waiting for a twin's
    prefill and doing it again on an idle worker cost the same.
    The engine's own count matters after the router's restart, when the bookings are lost.
    computing_ms: this request's encode and prefill on the worker.
    """
    active = max(load.active_requests, engine.num_running + engine.num_waiting)
    decoding = rates.decode_ms_per_request * active + rates.kv_pressure_ms * engine.kv_usage**2
    return decoding + rates.crowding * computing_ms


def score(
    worker: WorkerId,
    contract: WorkerContract,
    query: RouteQuery,
    *,
    credit: Credit,
    leading: Leading,
    load: WorkerLoad,
    engine: EngineLoad,
    rates: Rates,
) -> CandidateScore:
    """One worker's candidacy.

    leading: of the query's keys for this contract, before `credit` limits it.
    """
    view = query.views.get(contract.spec)
    size, n = contract.block_size, query.num_tokens
    confirmed, expected = (
        usable_blocks(min(blocks, credit.max_blocks), n, size, contract.drops_last_matched_block)
        for blocks in leading
    )
    media_blocks = view.media_blocks if view is not None else ()
    cached = max(confirmed, expected) * size
    encode = rates.encode_ms_per_token * encode_tokens_left(view, query.media_tokens, cached)
    prefill = prefill_ms(rates, n, cached)
    return CandidateScore(
        worker=worker,
        overlap_blocks=confirmed,
        expected_blocks=expected,
        total_blocks=n // size,
        media_overlap_blocks=bisect_left(media_blocks, confirmed),
        media_total_blocks=len(media_blocks),
        wait_ms=wait_ms(rates, load),
        encode_ms=encode,
        prefill_ms=prefill,
        pressure_ms=pressure_ms(rates, load, engine, encode + prefill),
        reasons=credit.reasons
        if contract.publishes_events
        else (*credit.reasons, DegradeReason.KV_EVENTS_OFF),
    )
