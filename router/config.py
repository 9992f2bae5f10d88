"""The router's settings: every knob with its default, its unit and what it does."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["PolicyName", "RouterConfig"]

PolicyName = Literal["cost", "kv_blocks", "round_robin", "power_of_two", "least_loaded", "media_sticky"]


class RouterConfig(BaseModel):
    """How the router actor decides, and how it and the workers' relays keep in touch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: PolicyName = Field(
        "cost",
        description="How a worker is chosen: `cost` takes the lowest expected time to the first token; the "
        "others are for comparison: `kv_blocks` counts cached and active blocks, `round_robin`, "
        "`power_of_two` and `least_loaded` know no cache, `media_sticky` sends a picture to one place.",
    )
    prefill_ms_per_token: float = Field(
        0.05,
        ge=0,
        description="Milliseconds per prompt token that an engine computes. Higher: a cached prefix weighs "
        "more, and so does a queue of prompts.",
    )
    attention_ms_per_kilotoken2: float = Field(
        0.0,
        ge=0,
        description="Milliseconds per squared thousand prompt tokens: the part of prefill that grows "
        "quadratically. 0 takes prefill as linear; set it for very long prompts.",
    )
    encode_ms_per_token: float = Field(
        0.05,
        ge=0,
        description="Milliseconds of vision encoder per media token that no cached prefix covers. Higher: "
        "a picture seen before weighs more.",
    )
    decode_ms_per_request: float = Field(
        1.0,
        ge=0,
        description="Milliseconds that one active request of a worker costs a newcomer, and the newcomer it. "
        "Higher: requests spread wider.",
    )
    kv_pressure_ms: float = Field(
        50.0,
        ge=0,
        description="Milliseconds added at a full KV cache; grows with the square of its usage, so that it "
        "matters only near the end. Higher: nearly full workers are spared.",
    )
    crowding: float = Field(
        0.25,
        ge=0,
        le=10,
        description="Share of a request's own computing time that is counted once more, for the requests it "
        "delays. Above 0, a twin of a request under way waits for it rather than computing the same "
        "elsewhere. Higher: less work done twice, longer waits.",
    )
    decision_budget_ms: float = Field(
        50.0,
        gt=0,
        description="Milliseconds an ingress waits for a decision; then the request goes where the pinned "
        "router sends it (`decision_timeout`).",
    )
    expected_ttl_s: float = Field(
        30.0,
        gt=0,
        description="Seconds that blocks count as expected on the worker a request was sent to, until events "
        "confirm them. Too short: twins scatter while the first one is still in prefill.",
    )
    approximate_ttl_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that expected blocks live on a worker that publishes no KV events "
        "(`kv_events_off`): the only thing known of its cache.",
    )
    lease_start_s: float = Field(
        30.0,
        gt=0,
        description="Seconds after which a booked request that no replica has taken is released.",
    )
    lease_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds after a request's last sign of life until its booking is released. Must exceed "
        "the longest answer.",
    )
    decisions_kept: int = Field(
        10_000,
        ge=1,
        description="Decisions kept for `/router/decisions/{id}` and for the audit; the oldest go first.",
    )
    warm_timeout_s: float = Field(
        2.0,
        ge=0,
        description="Seconds a restarted router actor waits for its workers' tables before it decides "
        "without the late ones.",
    )
    push_interval_ms: float = Field(
        15.0,
        gt=0,
        description="Milliseconds that a worker gathers events before it sends them. Lower: the view "
        "is fresher; higher: fewer messages.",
    )
    heartbeat_ms: float = Field(
        500.0,
        gt=0,
        description="Milliseconds after which a worker with nothing to say sends an empty message.",
    )
    worker_silence_s: float = Field(
        15.0,
        gt=0,
        description="Seconds without a message after which a worker is not chosen while others are heard; "
        "after four times as long it is forgotten.",
    )
