"""The router's settings: every knob with its default, its unit and what it does."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["AdmissionConfig", "HintsConfig", "PolicyName", "RouterConfig"]

PolicyName = Literal[
    "cost", "kv_blocks", "round_robin", "power_of_two", "least_loaded", "media_sticky", "approximate"
]


class AdmissionConfig(BaseModel):
    """When the pool is full: beyond these limits at every worker a request gets a 429 with Retry-After."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_waiting_requests_per_worker: int | None = Field(
        None,
        ge=1,
        description="Requests that may wait for their first token at one worker. A worker past it gets no "
        "more; with all past it, requests are refused (429). None: no limit.",
    )
    max_waiting_tokens_per_worker: int | None = Field(
        None,
        ge=1,
        description="Prompt and media tokens that may wait to be computed at one worker; as above. A "
        "request larger than that is taken where nothing waits. None: no limit.",
    )

    @property
    def is_limited(self) -> bool:
        return (
            self.max_waiting_requests_per_worker is not None or self.max_waiting_tokens_per_worker is not None
        )


class HintsConfig(BaseModel):
    """Which request headers the router listens to. All are off: they let a client choose its place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: Literal["off", "soft", "hard"] = Field(
        "off",
        description="`x-sightline-session`: `soft` favours the worker that served the session last by "
        "`session_bonus_ms`; `hard` keeps it there as long as that worker lives.",
    )
    priority: bool = Field(
        False,
        description="`x-sightline-priority`, an integer from -100 to 100: above 0 the request passes the "
        "limits of `admission`; below 0 it is refused at half of them.",
    )
    pin: bool = Field(
        False,
        description="`x-sightline-worker`: this worker (or any rank of this replica) must serve the "
        "request, whatever it costs. For debugging.",
    )


class RouterConfig(BaseModel):
    """How the router actor decides, and how it and the workers' relays keep in touch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: PolicyName = Field(
        "cost",
        description="How a worker is chosen: `cost` takes the lowest expected time to the first token; the "
        "others are for comparison: `kv_blocks` counts cached and active blocks, `round_robin`, "
        "`power_of_two` and `least_loaded` know no cache, `media_sticky` sends a picture to one place, "
        "`approximate` is `cost` without KV events: blocks count where they were sent.",
    )
    temperature_ms: float = Field(
        0.0,
        ge=0,
        description="Milliseconds; above 0 `cost` draws the worker, each with the weight "
        "exp(-cost / temperature). Higher: more even, less cached. 0: always the lowest.",
    )
    prefill_ms_per_token: float = Field(
        0.05,
        ge=0,
        description="Milliseconds per prompt token that an engine computes, until it is learned. Higher: a "
        "cached prefix weighs more, and so does a queue of prompts.",
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
        description="Milliseconds of vision encoder per media token that no cached prefix covers, until it "
        "is learned. Higher: a picture seen before weighs more.",
    )
    rate_gain: float = Field(
        0.05,
        ge=0,
        le=1,
        description="How much less all earlier measurements of a worker's speed count after each new one, as "
        "a share. Higher: quicker, more nervous. 0: the configured rates stay.",
    )
    rate_memory_s: float = Field(
        600.0,
        gt=0,
        description="Seconds without measurements after which half of what was learned of a worker's speed "
        "is forgotten.",
    )
    encoder_cache_tokens: int = Field(
        8192,
        ge=0,
        description="Encoder tokens whose output a worker is taken to keep, where it does not say. Higher: "
        "pictures are thought encoded for longer. 0: no encoder cache is assumed.",
    )
    lower_tier_credit: float = Field(
        0.75,
        ge=0,
        le=1,
        description="What a block in a lower tier (CPU, disk) saves, as a share of its prefill. It never "
        "counts as a predicted hit.",
    )
    decode_ms_per_request: float = Field(
        3.0,
        ge=0,
        description="Milliseconds that one active request of a worker costs a newcomer, and the newcomer it. "
        "Higher: requests spread wider.",
    )
    saturation_requests: float = Field(
        64.0,
        gt=0,
        description="Active requests of a worker at which they cost twice their number. Lower: a prefix "
        "that everybody shares spreads over more workers.",
    )
    kv_pressure_ms: float = Field(
        50.0,
        ge=0,
        description="Milliseconds added at a full KV cache (as the engine says, or as booked); grows with "
        "the square of its usage, so that it matters only near the end. Higher: nearly full workers are "
        "spared.",
    )
    crowding: float = Field(
        0.25,
        ge=0,
        le=10,
        description="Share of a request's own computing time that is counted once more, for the requests it "
        "delays. Above 0, a twin of a request under way waits for it rather than computing the same "
        "elsewhere. Higher: less work done twice, longer waits.",
    )
    crowding_requests: float = Field(
        5.0,
        gt=0,
        description="Active requests of a worker at which `crowding` counts twice, as computing delays them "
        "all. Lower: among busy workers the cache decides, and idle ones take what they have to compute.",
    )
    sharers_per_copy: float = Field(
        8.0,
        gt=0,
        description="Open requests that share a prefix, for each worker it is due on (and on no more workers "
        "than its share of all open requests). While it is on fewer, another one computes it at little cost. "
        "Higher: fewer copies; `.inf`: only as many as pay for themselves request by request.",
    )
    decision_budget_ms: float = Field(
        50.0,
        gt=0,
        description="Milliseconds an ingress waits for a decision; then the request goes where the pinned "
        "router sends it (`decision_timeout`).",
    )
    index_memory_bytes: int = Field(
        4 << 30,
        ge=0,
        description="Bytes that the tables of resident blocks may take in the router actor, some 35 for each "
        "block of each worker; 0 is unlimited. Blocks beyond it earn no credit (`index_full` in the log, "
        "`refused_stores` in the stats).",
    )
    expected_ttl_s: float = Field(
        30.0,
        gt=0,
        description="Seconds that a request's blocks count as expected on the worker it was sent to, if it "
        "does not end before. Too short: twins scatter while the first one is still in prefill.",
    )
    approximate_ttl_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that expected blocks live on a worker that publishes no KV events "
        "(`kv_events_off`): the only thing known of its cache.",
    )
    approximate_capacity_tokens: int = Field(
        1_000_000,
        ge=1,
        description="Tokens of expected blocks kept for a worker without KV events that does not say how "
        "many its cache holds; the oldest go first.",
    )
    lease_start_s: float = Field(
        30.0,
        gt=0,
        description="Seconds after which a booked request that no replica has taken is released. While it "
        "waits its ingress renews it.",
    )
    lease_s: float = Field(
        60.0,
        gt=0,
        description="Seconds after a request's last sign of life until its booking is released. The replica "
        "that serves it renews it, four times in this time.",
    )
    reconcile_after_s: float = Field(
        5.0,
        gt=0,
        description="Seconds after which a started booking is released at a worker whose engine and relay "
        "say that nothing runs.",
    )
    receipts_memory_bytes: int = Field(
        64 << 20,
        ge=1 << 16,
        description="Bytes of decisions kept for `/router/decisions/{id}`; the oldest go first. With 64 "
        "workers one takes about 9 kB.",
    )
    distrust_after_differences: int = Field(
        3,
        ge=1,
        description="Unexplained differences in a row between predicted and real cached tokens, after which "
        "a worker's layout earns no credit (`cached_distrust`). A prompt length that differs does it at "
        "once (`length_distrust`).",
    )
    trust_after_agreements: int = Field(
        10,
        ge=1,
        description="Right predictions in a row, made without credit, after which a distrusted layout is "
        "believed again.",
    )
    session_bonus_ms: float = Field(
        20.0,
        ge=0,
        description="Milliseconds that a soft session's own worker is favoured by.",
    )
    sessions_kept: int = Field(
        100_000, ge=1, description="Sessions whose worker is remembered; the longest unused go first."
    )
    session_ttl_s: float = Field(
        3600.0, gt=0, description="Seconds after a session's last request until it may go anywhere."
    )
    hints: HintsConfig = Field(
        default_factory=HintsConfig, description="Request headers that the router listens to."
    )
    admission: AdmissionConfig = Field(
        default_factory=AdmissionConfig, description="Limits beyond which requests are refused."
    )
    warm_timeout_s: float = Field(
        2.0,
        ge=0,
        description="Seconds a restarted router actor waits for its workers' tables before it decides "
        "without the late ones.",
    )
    snapshot_path: str | None = Field(
        None,
        description="File in which the router actor writes down what the workers hold, for its next life on "
        "this node. None: it starts with nothing but the workers' own tables. A file of its own per pool.",
    )
    snapshot_interval_s: float = Field(
        30.0,
        gt=0,
        description="Seconds between two snapshots, where `snapshot_path` is set. Lower: a restarted router "
        "knows more before the workers' tables come; higher: less is written.",
    )
    line: Literal["auto", "off"] = Field(
        "auto",
        description="How ingresses and replicas reach the router actor: `auto` by a TCP connection of "
        "their own (not encrypted; opened with a token that Ray hands them), and by Ray's calls where it is "
        "not up; `off` by Ray's calls alone, which cost about a millisecond of CPU each. With "
        "`RAY_USE_TLS` it is off.",
    )
    line_port: int = Field(
        0,
        ge=0,
        le=65526,
        description="TCP port of that connection on the router actor's node, for firewalls: the first free "
        "one of ten from here on. 0: any.",
    )
    push_interval_ms: float = Field(
        30.0,
        gt=0,
        description="Milliseconds between two messages of a worker while it has news; the first after a "
        "pause goes at once. Lower: the view is fresher; higher: fewer messages. In simulated fleets 50 cost "
        "nothing that could be measured, and 100 some 6 % of the slowest tenth's first token.",
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

    @property
    def renewal_s(self) -> float:
        """Between a relay's lists of the requests that run."""
        return self.lease_s / 4
