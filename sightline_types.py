"""The words that every part of Sightline shares: ids, token views, contracts, decisions.

This is the only module that `router`, `processors`, `deployments` and `app` all import. It knows
neither Ray nor an engine, does no I/O, and holds no state.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, NamedTuple, NewType, TypeVar, overload

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = [
    "DEFAULT_GROUP",
    "BlockKey",
    "CandidateScore",
    "Decision",
    "DecisionId",
    "DecisionReason",
    "DegradeReason",
    "EmbedRun",
    "EngineLoad",
    "ImageSize",
    "KeyScheme",
    "KeySpec",
    "KeyedView",
    "KvGroup",
    "LayoutContract",
    "LifecycleEvent",
    "LifecycleKind",
    "MediaId",
    "MediaItem",
    "MediaOverlap",
    "MediaReport",
    "MediaSource",
    "MediaSpan",
    "Modality",
    "PreparedPrompt",
    "PushReply",
    "RelayStatus",
    "RouteHints",
    "RouteQuery",
    "Tier",
    "TierDelta",
    "TokenIds",
    "TokenView",
    "VideoShape",
    "WorkerContract",
    "WorkerId",
    "WorkerPush",
    "lean",
]

#: One 64-bit chained key of one full block; 0 is never a key.
BlockKey = NewType("BlockKey", int)

#: Made by the ingress, 16 hex digits, unique per request.
DecisionId = NewType("DecisionId", str)

#: KV cache group of a model that has only one.
DEFAULT_GROUP = 0

_T = TypeVar("_T")
_MASK64 = (1 << 64) - 1
_ENGINE_UUID = re.compile("[0-9a-f]{16}0{48}")


def lean(cls: type[_T]) -> type[_T]:
    """Pickle a dataclass as a call of itself, at a third of the time and the bytes of its own way: for what
    crosses to another process with every request."""
    names = [part.name for part in fields(cls)]  # type: ignore[arg-type]
    read = attrgetter(*names)

    def reduce(self: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return cls, read(self) if len(names) > 1 else (read(self),)

    cls.__reduce__ = reduce  # type: ignore[method-assign]
    return cls


@lean
@dataclass(frozen=True, order=True, slots=True)
class MediaId:
    """The identity of one media item: 64 bits that enter block keys and that the engine is given."""

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value <= _MASK64:
            raise ValueError(f"a media id has 64 bits, got {self.value:#x}")

    @classmethod
    def random(cls) -> MediaId:
        """An identity that equals no other: for an item whose identity is unknown."""
        return cls(secrets.randbits(64))

    @classmethod
    def from_hex(cls, text: str) -> MediaId:
        return cls(int(text, 16))

    @classmethod
    def from_engine(cls, identifier: str) -> MediaId:
        """Read the identifier in a vLLM KV event.

        64 hex digits whose last 48 are zeros are ours (`engine_uuid`); any other string is hashed
        with xxh3_64 of its UTF-8 bytes.
        """
        if _ENGINE_UUID.fullmatch(identifier):
            return cls(int(identifier[:16], 16))
        return cls(xxhash.xxh3_64_intdigest(identifier.encode()))

    @property
    def hex(self) -> str:
        """16 hex digits."""
        return f"{self.value:016x}"

    @property
    def engine_uuid(self) -> str:
        """The form vLLM is given: 16 hex digits, padded with zeros to 64."""
        return self.hex + "0" * 48

    def __str__(self) -> str:
        return self.hex


@lean
@dataclass(frozen=True, order=True, slots=True)
class WorkerId:
    """One engine that can hold blocks: a Serve replica and its data-parallel rank."""

    replica: str
    dp_rank: int = 0

    def __str__(self) -> str:
        return f"{self.replica}/{self.dp_rank}"

    @classmethod
    def parse(cls, text: str) -> WorkerId:
        replica, _, rank = text.partition("/")
        return cls(replica, int(rank or 0))


class Modality(StrEnum):
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class KeyScheme(StrEnum):
    """How an engine's blocks tell media apart; it enters the root of every key."""

    VLLM = "vllm"  # placeholder tokens as they are, media as extras (id, offset - block start)
    # Placeholder tokens replaced by the engine's pad values (router/pads.py), no extras:
    SGLANG_SINGLE = "sglang_single"  # one value an item: SGLang 0.5.13 to 0.5.22
    SGLANG_WIDE = "sglang_wide"  # four values of 62 bits an item: SGLang 0.5.23

    @property
    def has_pads(self) -> bool:
        """Whether media enter keys as pad values, in place of the placeholder tokens."""
        return self is not KeyScheme.VLLM


class DegradeReason(StrEnum):
    """Why a request (or a worker's credit for it) is less than exact, by name."""

    UNSUPPORTED_FAMILY = "unsupported_family"
    UNSUPPORTED_MODALITY = "unsupported_modality"
    SIZE_UNKNOWN = "size_unknown"
    SIZE_REFUSED = "size_refused"  # the model's own processor raises on this size
    VIDEO_REFUSED = "video_refused"  # the model's own processor raises on this clip
    LAYOUT_PARAMETER_MISSING = "layout_parameter_missing"  # the layout needs what no file or argument says
    MEDIA_MIX = "media_mix"  # exact alone, not together with the request's other items
    PLACEHOLDER_MISMATCH = "placeholder_mismatch"
    VIDEO_DECODED_BY_ENGINE = "video_decoded_by_engine"  # video.decode: engine
    VIDEO_NOT_DECODED = "video_not_decoded"  # the ingress could not; the replica tries
    CLIENT_UUID_WITHOUT_SIZE = "client_uuid_without_size"
    MM_PROCESSOR_KWARGS = "mm_processor_kwargs"
    LAYOUT_OFF = "layout_off"  # by configuration
    RENDERER_UNAVAILABLE = "renderer_unavailable"  # not there, or not in time
    RENDERER_REFUSED = "renderer_refused"  # the engine's own renderer raises on this request
    CONTRACT_MISMATCH = "contract_mismatch"
    CONTRACT_MISSING = "contract_missing"
    KV_CACHE_GROUPS = "kv_cache_groups"
    KV_EVENTS_OFF = "kv_events_off"
    EVENTS_DISTRUSTED = "events_distrusted"  # the worker's stream or its messages were garbage
    LENGTH_DISTRUST = "length_distrust"  # the engine's prompt length contradicted ours
    CACHED_DISTRUST = "cached_distrust"  # the engine's cached tokens contradicted ours, again and again
    ROUTER_UNREACHABLE = "router_unreachable"
    DECISION_TIMEOUT = "decision_timeout"
    NO_WORKER = "no_worker"
    ENGINE_IDENTITY = "engine_identity"  # the engine does not key media by the identities that it is given


class DecisionReason(StrEnum):
    """What settled a decision."""

    COST = "cost"  # the lowest expected time
    TIE = "tie"  # equal costs, settled by rendezvous
    ONLY_WORKER = "only_worker"
    FELL_OPEN = "fell_open"  # another replica than the decided one took the request
    POLICY = "policy"  # a comparison policy that knows no cost
    SAMPLED = "sampled"  # drawn by cost, at a temperature above 0
    SESSION = "session"  # the session's own worker (hint)
    PINNED = "pinned"  # the worker that the request names (hint)
    ROUTER_UNREACHABLE = "router_unreachable"
    DECISION_TIMEOUT = "decision_timeout"
    NO_WORKER = "no_worker"


@lean
@dataclass(frozen=True, slots=True)
class ImageSize:
    """Pixels, after EXIF orientation."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@lean
@dataclass(frozen=True, slots=True)
class VideoShape:
    """What a layout reads of a clip: the frames that the engine is given, not those of the file.

    size: of each frame. source_fps: frames a second of the file. frame_indices: of the given frames, in
    the file (empty where not known: then a layout with timestamps is refused). total_frames: of the file.
    """

    size: ImageSize
    num_frames: int
    source_fps: float | None = None
    frame_indices: tuple[int, ...] = ()
    total_frames: int | None = None

    def __str__(self) -> str:
        fps = "" if self.source_fps is None else f"@{self.source_fps:g}"
        return f"{self.size}:{self.num_frames}{fps}"


class EmbedRun(NamedTuple):
    """Positions [start, start + length) of a span that the item's encoder fills; start counts in the span."""

    start: int
    length: int


@lean
@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Where one media item lies in an expanded prompt: token positions [offset, offset + length).

    The span is all that the item's placeholder became, start, end, separator and timestamp tokens
    included (vLLM's PlaceholderRange: each block that it touches carries the identity).
    embeds: the placeholder tokens proper (what SGLang replaces by pads), ascending; empty where they
        are the whole span.
    """

    offset: int
    length: int
    media_id: MediaId
    embeds: tuple[EmbedRun, ...] = ()

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def embed_runs(self) -> tuple[tuple[int, int], ...]:
        """(first, end) positions in the prompt of each run of placeholder tokens proper."""
        runs = self.embeds or (EmbedRun(0, self.length),)
        return tuple((self.offset + start, self.offset + start + length) for start, length in runs)

    @property
    def num_embeds(self) -> int:
        """Tokens that the item's encoder fills."""
        return sum(run.length for run in self.embeds) if self.embeds else self.length


class TokenIds(Sequence[int]):
    """Token ids that are passed on whole: 4 bytes each, in memory and between processes. Never changes.

    ids: shape (n,), of any integer type.
    """

    __slots__ = ("_array",)

    def __init__(self, ids: npt.NDArray[np.integer[Any]]) -> None:
        self._array = np.ascontiguousarray(ids, dtype="<i4")

    @classmethod
    def from_bytes(cls, packed: bytes) -> TokenIds:
        """packed: little-endian int32."""
        return cls(np.frombuffer(packed, dtype="<i4"))

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> TokenIds: ...
    def __getitem__(self, index: int | slice) -> int | TokenIds:
        return TokenIds(self._array[index]) if isinstance(index, slice) else int(self._array[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self._array.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._array, dtype=dtype) if copy else self._array.astype(dtype or "<i4", copy=False)

    def __eq__(self, other: object) -> bool:
        """As a sequence of numbers: a tuple or a list of the same ones is equal."""
        if isinstance(other, TokenIds):
            return np.array_equal(self._array, other._array)
        return isinstance(other, list | tuple) and self._array.tolist() == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"TokenIds({self._array.tolist()})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return TokenIds.from_bytes, (self._array.tobytes(),)


@dataclass(frozen=True, slots=True)
class TokenView:
    """The engine's expanded prompt as we foresee it; only routing reads it.

    token_ids: shape (n,), int64.
    spans: by offset, not overlapping.
    exact_until: token positions below it are known to equal the engine's; nothing after earns credit.
    """

    token_ids: npt.NDArray[np.int64]
    spans: tuple[MediaSpan, ...]
    exact_until: int

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_exact(self) -> bool:
        return self.exact_until >= len(self.token_ids)


@dataclass(frozen=True, slots=True)
class MediaSource:
    """Where an item comes from: one of the four is set, or none where only an engine has it (a client's
    uuid without a file).

    data: the encoded file's bytes.
    url: http(s), data: or file:, read by `processors.fetch` only.
    pixels: decoded, shape (height, width, 3), uint8, RGB, C-contiguous (identity mode `content`).
    frames: of a decoded clip, shape (num_frames, height, width, 3), otherwise as pixels.
    """

    data: bytes | None = None
    url: str | None = None
    pixels: npt.NDArray[np.uint8] | None = None
    frames: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One media item of a request, in prompt order.

    size: of a picture, or of a clip's frames. video: of a clip whose frames are known.
    num_tokens: positions that it takes in the prompt; None where the layout is not known.
    identity_mode: what `media_id` was made from: "url", "normalized_url", "bytes", "content", "uuid".
    anchor: what the identity rests on until the file is at hand. Addresses: the identity of the address,
        into which the size is folded. A file that the address gave before: that file's identity.
    is_held: an engine may hold the item, so it is asked with the identity alone first.
    unknown_because: why the shape is not known, where that has a name of its own.
    """

    modality: Modality
    media_id: MediaId
    source: MediaSource
    size: ImageSize | None = None
    num_tokens: int | None = None
    identity_mode: str = "url"
    video: VideoShape | None = None
    anchor: MediaId | None = None
    is_held: bool = False
    unknown_because: DegradeReason | None = None

    @property
    def shape(self) -> ImageSize | VideoShape | None:
        """What a layout is asked with; None where it is not known."""
        return self.size if self.modality is Modality.IMAGE else self.video


@lean
@dataclass(frozen=True, slots=True)
class MediaReport:
    """What a receipt and a log line say of one media item."""

    modality: Modality
    media_id: MediaId
    size: ImageSize | None
    num_tokens: int | None


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A chat request made ready: what the engine is given, and what the router sees.

    token_ids: the unexpanded prompt, one placeholder per item (what the engine is given).
    media: in prompt order.
    view: expanded, for routing only; text-prefix where `reasons` is not empty.
    reasons: why the view is not exact to its end; empty when it is.
    estimated_media_tokens: of items without an exact layout, so that they count as load.
    first_turn_tokens: tokens up to the end of the first user turn (0 when unknown): the tie key.
    first_turn_ids: the same in `token_ids`.
    layout: fingerprint of the layout that made the view, to be compared with the worker's contract;
        None when the request has no media (a text view needs no layout).
    """

    token_ids: Sequence[int]
    media: tuple[MediaItem, ...]
    view: TokenView
    reasons: tuple[DegradeReason, ...] = ()
    estimated_media_tokens: int = 0
    first_turn_tokens: int = 0
    layout: str | None = None
    first_turn_ids: int = 0

    @property
    def is_exact(self) -> bool:
        return not self.reasons and self.view.is_exact

    @property
    def num_tokens(self) -> int:
        """The prompt's length for the engine; an estimate where the view is not exact."""
        return len(self.view) + self.estimated_media_tokens


@lean
@dataclass(frozen=True, order=True, slots=True)
class KeySpec:
    """What decides how a view is cut into keys. A pool has few of them."""

    scheme: KeyScheme
    block_size: int


@lean
@dataclass(frozen=True, slots=True)
class KeyedView:
    """A view, keyed for one `KeySpec`.

    keys: little-endian uint64, 8 bytes a block: of the full blocks below `exact_until`.
    media_blocks: little-endian int32, ascending: indices of the blocks (of `keys`) that touch a media span.
    media_ends: for each media item of exact layout, in order, (token position of its end, encoder
        tokens), so that the router knows which items a cached prefix covers.
    """

    keys: bytes
    media_blocks: bytes = b""
    media_ends: tuple[tuple[int, int], ...] = ()

    def key_array(self) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self.keys, dtype="<u8")

    def media_block_array(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.media_blocks, dtype="<i4")


@lean
@dataclass(frozen=True, slots=True)
class RouteHints:
    """What a client asked of the router, where the configuration lets it.

    session: 64 bits of the session's name; None without one. priority: above 0 the request passes the
    admission limits. worker: a worker's id, or its replica's alone, that must serve the request.
    """

    session: int | None = None
    is_session_hard: bool = False
    priority: int = 0
    worker: str | None = None


@lean
@dataclass(frozen=True, slots=True)
class RouteQuery:
    """What the router actor is asked. It never holds tokens.

    views: one per distinct spec in the pool; may lack a spec (those workers get no credit).
    num_tokens: the engine's prompt length, as far as known (n of the prediction rule).
    media_tokens: encoder tokens in all, estimates included.
    layout: fingerprint that the views were built with; None without media.
    first_media_offset: token position of the first media item: workers whose contract does not
        agree with `layout` get credit for the full blocks before it only. None without media.
    tie_key: settles equal costs; the same request always has the same.
    exclude: workers that must not be chosen (they failed this request already).
    spans: the media of exact layout, in prompt order; with them the router knows each one's encoder work
        and blocks. Without them it goes by the views' `media_ends`.
    """

    decision_id: DecisionId
    views: dict[KeySpec, KeyedView]
    num_tokens: int
    media_tokens: int = 0
    layout: str | None = None
    first_media_offset: int | None = None
    tie_key: int = 0
    exclude: tuple[WorkerId, ...] = ()
    media: tuple[MediaReport, ...] = ()
    reasons: tuple[DegradeReason, ...] = ()
    expected_output_tokens: int = 0
    spans: tuple[MediaSpan, ...] = ()
    hints: RouteHints = RouteHints()


@dataclass(frozen=True, slots=True)
class MediaOverlap:
    """One media item on one worker: blocks that touch it, how many of them are usable there, and whether
    its encoder output is thought to be cached."""

    media_id: MediaId
    held_blocks: int
    total_blocks: int
    is_encoded: bool = False


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """One worker as a decision saw it. Costs in milliseconds; blocks of the worker's own size.

    lower_blocks: usable if what lies in lower tiers (CPU, disk) is counted, too.
    shadow_blocks: what `overlap_blocks` would be if the worker were trusted.
    encoder_cached_tokens: encoder tokens of media that no cached prefix covers, but whose encoder output
        the worker is thought to have.
    session_ms: below 0 where the request's session lives.
    """

    worker: WorkerId
    overlap_blocks: int  # usable blocks, confirmed by events
    expected_blocks: int  # usable blocks if what was sent there arrives
    total_blocks: int
    media_overlap_blocks: int
    media_total_blocks: int
    wait_ms: float
    encode_ms: float
    prefill_ms: float
    pressure_ms: float
    reasons: tuple[DegradeReason, ...] = ()
    lower_blocks: int = 0
    shadow_blocks: int = 0
    encoder_cached_tokens: int = 0
    session_ms: float = 0.0
    media: tuple[MediaOverlap, ...] = ()

    @property
    def cost_ms(self) -> float:
        return self.wait_ms + self.encode_ms + self.prefill_ms + self.pressure_ms + self.session_ms


@lean
@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes, and why.

    predicted_cached_tokens: what the engine will report as cached on `worker`.
    applied_seq: the last event batch of `worker` that the decision knew of.
    candidates: the decided one first where the router made them, then the others, cheapest first; the
        answer to an ingress names the first few of them only.
    regret_tokens: cached tokens that the worker with the most of them would have had beyond the decided.
    """

    decision_id: DecisionId
    worker: WorkerId
    block_size: int
    reason: DecisionReason
    candidates: Sequence[CandidateScore]
    num_tokens: int
    applied_seq: int
    pool_version: int
    degraded: tuple[DegradeReason, ...] = ()
    media: tuple[MediaReport, ...] = ()
    first_media_offset: int | None = None
    regret_tokens: int = 0

    @property
    def chosen(self) -> CandidateScore:
        return next(c for c in self.candidates if c.worker == self.worker)

    @property
    def predicted_cached_tokens(self) -> int:
        return self.chosen.overlap_blocks * self.block_size

    @property
    def ranked_workers(self) -> tuple[WorkerId, ...]:
        """The decided worker first, then the others, cheapest first."""
        others = sorted((c for c in self.candidates if c.worker != self.worker), key=lambda c: c.cost_ms)
        return (self.worker, *(c.worker for c in others))


class LifecycleKind(StrEnum):
    STARTED = "started"  # the replica has taken the request
    FIRST_TOKEN = "first_token"
    END = "end"
    ABORT = "abort"


@lean
@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """What a replica says of one request, in the same channel as its KV events.

    first_token_ms: from STARTED to the first token, on the replica's own clock; with END.
    """

    kind: LifecycleKind
    decision_id: DecisionId
    cached_tokens: int | None = None  # the engine's own figure; with END
    prompt_tokens: int | None = None  # the engine's own figure; with END
    comparable: bool = True  # False where the engine skipped reading its prefix cache
    first_token_ms: float | None = None


@dataclass(frozen=True, slots=True)
class LayoutContract:
    """A family as a worker would serve it.

    fingerprint: of the layout parameters that the worker's processor really uses.
    exact: whether the worker's own processor agreed with the registry on the probe sizes.
    """

    family: str
    fingerprint: str
    exact: bool
    reason: DegradeReason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One KV cache group of an engine.

    kind: as vLLM names it: full_attention, sliding_window, chunked_local_attention, mamba, ...
    block_size: tokens; 0 is the contract's own.
    window: tokens that a sliding window or an attention chunk spans; 0 where the kind has none.
    index: the engine's own number of the group, as its events carry it.
    """

    kind: str
    block_size: int = 0
    window: int = 0
    index: int = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class WorkerContract:
    """What a worker promises at registration; keys and views are built for it.

    publishes_events: False puts the worker in approximate mode (`kv_events_off`).
    kv_groups: the KV cache groups, one with full attention first where there is any: a `Tier` numbers them
        by their place here. `block_size` divides the block size of each.
    kv_capacity_tokens: 0 where unknown.
    encoder_cache_tokens: encoder tokens whose output the engine keeps; 0 where unknown.
    keeps_media: what it was given once it may be given by its identity alone; it says when it is not held.
    """

    engine: str
    engine_version: str
    block_size: int
    scheme: KeyScheme
    model: str
    max_model_len: int
    publishes_events: bool = True
    kv_groups: tuple[KvGroup, ...] = (KvGroup("full_attention"),)
    layouts: tuple[LayoutContract, ...] = ()
    drops_last_matched_block: bool = False
    kv_capacity_tokens: int = 0
    encoder_cache_tokens: int = 0
    keeps_media: bool = False
    detail: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @property
    def spec(self) -> KeySpec:
        return KeySpec(self.scheme, self.block_size)


class Tier(NamedTuple):
    """Where a block lies: its KV cache group (its place in the contract) and its medium ("GPU", ...)."""

    group: int = DEFAULT_GROUP
    medium: str = "GPU"


@lean
@dataclass(frozen=True, slots=True)
class TierDelta:
    """What changed in one tier of one worker: little-endian uint64 keys, disjoint, without repeats."""

    tier: Tier
    stored: bytes = b""
    removed: bytes = b""


@lean
@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself. kv_usage: 0 to 1."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0


@lean
@dataclass(frozen=True, slots=True)
class RelayStatus:
    """How far a relay has followed its engine.

    engine_seq: the engine's last event batch that the relay has translated (-1: none yet).
    idle: no request runs, and neither an event nor a lifecycle change came for the settle time.
    partial: events were lost beyond the engine's replay buffer since this epoch began.
    dropped_lifecycle_events: of requests, told by nobody else: there was no actor for too long.
    distrusted: why nothing that the engine publishes is believed for now; empty where it is.
    """

    engine_seq: int = -1
    idle: bool = False
    partial: bool = False
    replayed_batches: int = 0
    undecodable_events: int = 0
    dropped_lifecycle_events: int = 0
    distrusted: str = ""


@lean
@dataclass(frozen=True, slots=True)
class WorkerPush:
    """One message of a worker's ordered channel to the router actor.

    epoch: random, new at each relay start; seq: +1 a message within an epoch, from 0.
    table: the deltas are the worker's full residency, not a change, and `contract` is present:
        the first message of an epoch (registration), and the answer to `need == "table"`.
    leaving: the worker will take no more requests; forget it.
    running: the requests that the replica serves now, told every few seconds, so that their bookings
        live on; None in the messages between.
    """

    worker: WorkerId
    epoch: int
    seq: int
    deltas: tuple[TierDelta, ...] = ()
    lifecycle: tuple[LifecycleEvent, ...] = ()
    relay: RelayStatus = RelayStatus()
    load: EngineLoad | None = None
    table: bool = False
    contract: WorkerContract | None = None
    leaving: bool = False
    running: tuple[DecisionId, ...] | None = None


@lean
@dataclass(frozen=True, slots=True)
class PushReply:
    """The router actor's answer to one push.

    need: "ok", or "table" when the actor lacks what came before (a gap, a new actor).
    """

    actor_epoch: int
    applied_seq: int
    need: Literal["ok", "table"] = "ok"
