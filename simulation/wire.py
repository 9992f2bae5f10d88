"""A simulated engine's events as vLLM publishes them: the payload of one batch, in msgpack. Pure.

A batch is the array `[timestamp, [event, ...], data_parallel_rank]`, an event a map with a `type`; fields
are left out where they are at their default. Source: `vllm/distributed/kv_events.py` (0.32.0), and for what
stands in the fields `vllm/v1/core/block_pool.py`. Like vLLM's, a removal names one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sightline_types import MediaSpan
from simulation.events import Cleared, Event, Removed, Stored

__all__ = ["BlockContent", "encode_batch"]

_GROUP = 0
_KIND = "full_attention"


class _BlockStored(msgspec.Struct, tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _BlockRemoved(msgspec.Struct, tag="BlockRemoved", omit_defaults=True, gc=False):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class _AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", omit_defaults=True, gc=False):
    pass


_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True, eq=False)
class BlockContent:
    """What a request's blocks are made of.

    token_ids: shape (n,), int64: the expanded prompt and the answer.
    spans: by offset. salt: the request's cache salt.
    """

    token_ids: npt.NDArray[np.int64]
    spans: tuple[MediaSpan, ...] = ()
    salt: str = ""

    def extra_keys(self, start: int, end: int) -> tuple[Any, ...] | None:
        """What tells the block of positions [start, end) apart beside its tokens: media, then the salt."""
        keys: list[Any] = [
            (span.media_id.engine_uuid, span.offset - start)
            for span in self.spans
            if span.offset < end and span.end > start
        ]
        if self.salt and start == 0:
            keys.append(self.salt)
        return tuple(keys) or None


def encode_batch(
    timestamp: float,
    events: Sequence[Event],
    contents: Mapping[str, BlockContent],
    block_size: int,
    *,
    dp_rank: int = 0,
) -> bytes:
    """One step's events as a payload.

    timestamp: wall clock, seconds. contents: of the requests that the events name. A block that was stored
    for a request that is not among them (moved between media after its end) comes without its tokens, as
    vLLM's offloading tells it: the hash is known by then.
    """
    wire = [shown for event in events for shown in _wire(event, contents, block_size)]
    return _encoder.encode([timestamp, wire, dp_rank])


def _wire(event: Event, contents: Mapping[str, BlockContent], block_size: int) -> Iterator[msgspec.Struct]:
    match event:
        case Stored():
            yield _stored(event, contents.get(event.request_id), block_size)
        case Removed():
            for key in event.keys:
                yield _BlockRemoved([key], event.medium, _GROUP)
        case Cleared():
            yield _AllBlocksCleared()


def _stored(event: Stored, content: BlockContent | None, block_size: int) -> _BlockStored:
    hashes = event.keys.tolist()
    if content is None:
        return _BlockStored(hashes, event.parent, [], 0, None, event.medium, None, None, _GROUP, _KIND)
    starts = range(event.first_block * block_size, (event.first_block + len(hashes)) * block_size, block_size)
    extras: list[tuple[Any, ...] | None] = [None] * len(hashes)
    if content.spans or content.salt:
        extras = [content.extra_keys(start, start + block_size) for start in starts]
    tokens = content.token_ids[starts.start : starts.stop].tolist()
    return _BlockStored(
        hashes, event.parent, tokens, block_size, None, event.medium, None, extras, _GROUP, _KIND
    )
