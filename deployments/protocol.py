"""What the ingress and an engine replica say to each other. Plain frozen values, small enough to travel
by value; media bytes go beside them (`deployments/transport.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sightline_types import DecisionId, ImageSize, MediaId, Modality, VideoShape, WorkerId, lean

__all__ = [
    "Delta",
    "EngineMedia",
    "EngineMessage",
    "EngineRequest",
    "Failed",
    "Finished",
    "NotHeld",
    "Refused",
    "Sampling",
    "Started",
    "TokenLogprob",
]


@lean
@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, under OpenAI's and vLLM's names. None: the engine's default."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None  # how many alternatives per token; 0: only the sampled one


@lean
@dataclass(frozen=True, slots=True)
class EngineMedia:
    """One media item of a request; its bytes are [offset, offset + length) of the payload.

    form: "file" is an encoded file; "pixels" are `shape` (height, width, 3), uint8, RGB; "frames" are
        `shape` (num_frames, height, width, 3), and `video` says which frames of which clip;
        "held" has no bytes: the engine may hold the item under its identity.
    size: as it was foreseen; None where it was not. is_named: its identity is a client's uuid.
    """

    modality: Modality
    media_id: MediaId
    form: Literal["file", "pixels", "frames", "held"]
    offset: int
    length: int
    shape: tuple[int, ...] | None = None
    video: VideoShape | None = None
    size: ImageSize | None = None
    is_named: bool = False


@lean
@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request as an engine replica gets it.

    decision_id: also the request's id at the engine.
    decided: the worker that the router chose; None without a decision.
    dp_rank: which of the replica's data-parallel ranks serves it; the replica settles that.
    token_ids: unexpanded, one placeholder per media item.
    is_as_foreseen: False where a file was not what its address had promised, so that no prediction of
        this request can be held against the engine.
    wants_prompt_ids: whether `Finished` is to carry the expanded prompt.
    """

    decision_id: DecisionId
    token_ids: Sequence[int]
    sampling: Sampling
    media: tuple[EngineMedia, ...] = ()
    decided: WorkerId | None = None
    dp_rank: int = 0
    cache_salt: str | None = None
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)
    is_as_foreseen: bool = True
    wants_prompt_ids: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """First message: who really serves."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: str
    token_id: int
    logprob: float
    top: tuple[tuple[str, int, float], ...] = ()  # token, id, logprob; best first


@dataclass(frozen=True, slots=True)
class Delta:
    """New text and tokens since the last message."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Last message of a request that went well; counts are the engine's own.

    prompt_token_ids: expanded; empty where the request did not want them.
    """

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    stop_reason: int | str | None = None
    prompt_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """Last message of a request that the engine refused: the user's fault (4xx) or the engine's (5xx)."""

    message: str
    status: int
    param: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine cannot take requests (any more) and has produced nothing: try another replica.

    worker: who refused; it need not be the one that was decided.
    """

    reason: str
    worker: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class NotHeld:
    """Instead of a delta: the engine does not hold items that came without their bytes.

    keeps_media: False where it never holds any, by its own settings.
    """

    keeps_media: bool = True


EngineMessage = Started | Delta | Finished | Failed | Refused | NotHeld
