"""An engine's KV cache events: from the bytes that it publishes to typed values.

A payload is the msgpack array `[timestamp, [event, ...], data_parallel_rank]`. An event comes in one of
two forms, told apart by its msgpack type:

    map     {"type": "BlockStored", "block_hashes": [...], ...}   vLLM 0.32, SGLang from 0.5.20
    array   ["BlockStored", block_hashes, parent, ...]            older releases of both

Fields equal to their default are left out of maps and off the end of arrays. What a later release adds
is passed over: unknown fields are ignored, and an unknown event becomes an `UnknownEvent`.

Source of the fields: `vllm/distributed/kv_events.py` (0.32.0).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from router.keys import RouterError
from sightline_types import DEFAULT_GROUP, MediaId, Tier

__all__ = [
    "AllCleared",
    "BlockExtras",
    "BlockRemoved",
    "BlockStored",
    "EngineHash",
    "EventBatch",
    "EventDecodeError",
    "KVEvent",
    "UnknownEvent",
    "decode_batch",
]

#: The engine's own name of a block. Opaque: it finds a parent or a removed block, and no more.
EngineHash = int | bytes

#: KV cache groups of an engine, and tiers of a worker, at most.
MAX_TIERS = 64
MAX_MEDIUM_LENGTH = 32
_DEFAULT_MEDIUM = "GPU"
_MAX_OFFSET = 1 << 63
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")


class EventDecodeError(RouterError, ValueError):
    """A payload is not a batch of KV events."""


@dataclass(frozen=True, slots=True)
class BlockExtras:
    """What tells a block apart from another with the same tokens.

    media: of each item that touches the block, in order: its id, and its first token's position from
        the block's start (negative when it began in an earlier block).
    salt: the request's cache salt; engines name it in a prompt's first block only.
    opaque: something that a request cannot be asked for (prompt embeddings): the block earns no credit.
    """

    media: tuple[tuple[MediaId, int], ...] = ()
    salt: str = ""
    opaque: bool = False


NO_EXTRAS = BlockExtras()
_OPAQUE = BlockExtras(opaque=True)


@dataclass(frozen=True, slots=True, eq=False)
class BlockStored:
    """Consecutive blocks were stored.

    parent: the block before the first one; None at a prompt's start.
    token_ids: shape (len(hashes) * block_size,), int64, where the event covers its blocks. A block that
        was masked out, or moved between media, comes with more or fewer.
    extras: one per block, or empty when no block has any.
    """

    tier: Tier
    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    token_ids: npt.NDArray[np.int64]
    block_size: int
    lora: str = ""
    extras: tuple[BlockExtras, ...] = ()

    @property
    def covers_blocks(self) -> bool:
        """Whether every block's tokens (and extras, where there are any) are told."""
        num_blocks = len(self.hashes)
        fits = self.block_size > 0 and len(self.token_ids) == num_blocks * self.block_size
        return fits and len(self.extras) in (0, num_blocks)

    def block_tokens(self, block: int) -> npt.NDArray[np.int64]:
        """Tokens of one block, shape (block_size,)."""
        return self.token_ids[block * self.block_size : (block + 1) * self.block_size]

    def block_extras(self, block: int) -> BlockExtras:
        return self.extras[block] if self.extras else NO_EXTRAS


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks were removed, in this order. vLLM tells of each by an event of its own: those that follow one
    another in a batch are one here."""

    tier: Tier
    hashes: tuple[EngineHash, ...]


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The engine dropped its whole cache."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a later release."""

    tag: str


KVEvent = BlockStored | BlockRemoved | AllCleared | UnknownEvent


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one scheduler step published. ts: the engine's wall clock, seconds."""

    ts: float
    events: tuple[KVEvent, ...]
    dp_rank: int | None = None


class _WireBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class _WireStored(msgspec.Struct):
    block_hashes: tuple[int | bytes, ...]
    token_ids: list[int | tuple[int, int]]
    block_size: int
    parent_block_hash: int | bytes | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    cache_salt: str | None = None


class _WireRemoved(msgspec.Struct):
    block_hashes: tuple[int | bytes, ...]
    medium: str | None = None
    group_idx: int | None = None


class _StoredMap(_WireStored, tag_field="type", tag="BlockStored"):
    pass


class _RemovedMap(_WireRemoved, tag_field="type", tag="BlockRemoved"):
    pass


class _ClearedMap(msgspec.Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _MapBatch(msgspec.Struct, array_like=True):
    """What today's engines send, and nothing else."""

    ts: float
    events: list[_StoredMap | _RemovedMap | _ClearedMap]
    data_parallel_rank: int | None = None


_map_decoder = msgspec.msgpack.Decoder(_MapBatch)
_batch_decoder = msgspec.msgpack.Decoder(_WireBatch)


def decode_batch(payload: bytes) -> EventBatch:
    """Decode one published payload.

    Raises:
        EventDecodeError: not msgpack, or a known event whose fields have the wrong type.
    """
    try:
        wire = _read(payload)
        events = tuple(_joined(wire.events))
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise EventDecodeError(f"not a batch of KV events ({len(payload)} bytes): {error}") from error
    return EventBatch(wire.ts, events, wire.data_parallel_rank)


def _read(payload: bytes) -> _MapBatch | _WireBatch:
    """At once into typed fields where all events have today's form, at a third of the time."""
    try:
        return _map_decoder.decode(payload)
    except (msgspec.MsgspecError, OverflowError, RecursionError):
        return _batch_decoder.decode(payload)


def _joined(events: Sequence[Any]) -> Iterator[KVEvent]:
    for removed_from, run in itertools.groupby(events, _removed_from):
        if removed_from is None:
            yield from map(_event, run)
        else:
            hashes = itertools.chain.from_iterable(removed.block_hashes for removed in run)
            yield BlockRemoved(_tier(*removed_from), tuple(hashes))


def _removed_from(event: Any) -> tuple[int | None, str | None] | None:
    return (event.group_idx, event.medium) if type(event) is _RemovedMap else None


def _event(raw: Any) -> KVEvent:
    if isinstance(raw, _StoredMap):
        return _block_stored(raw)
    if isinstance(raw, _ClearedMap):
        return AllCleared()
    tag, fields = _tag_and_fields(raw)
    match tag:
        case "BlockStored":
            return _stored(_named(fields, _STORED_FIELDS))
        case "BlockRemoved":
            return _removed(_named(fields, _REMOVED_FIELDS))
        case "AllBlocksCleared":
            return AllCleared()
    return UnknownEvent(tag)


def _tag_and_fields(raw: Any) -> tuple[str, dict[str, Any] | list[Any]]:
    match raw:
        case {"type": str(tag)}:
            return tag, raw
        case [str(tag), *fields]:
            return tag, fields
    raise EventDecodeError(f"neither a tagged map nor a tagged array: {type(raw).__name__}")


def _named(fields: dict[str, Any] | list[Any], names: Sequence[str]) -> dict[str, Any]:
    return fields if isinstance(fields, dict) else dict(zip(names, fields, strict=False))


def _stored(fields: dict[str, Any]) -> BlockStored:
    metadata = fields.get("lora_name")
    if isinstance(metadata, dict):
        # SGLang 0.5.18 has a metadata struct where vLLM's array form has the adapter's name.
        fields = {**fields, "lora_name": None, "cache_salt": metadata.get("cache_salt")}
    return _block_stored(msgspec.convert(fields, _WireStored))


def _block_stored(wire: _WireStored) -> BlockStored:
    lora = wire.lora_name or ""
    return BlockStored(
        tier=_tier(wire.group_idx, wire.medium),
        hashes=wire.block_hashes,
        parent=wire.parent_block_hash,
        token_ids=_tokens(wire.token_ids),
        block_size=wire.block_size,
        lora=lora,
        extras=_all_extras(wire, lora),
    )


def _tokens(ids: list[Any]) -> npt.NDArray[np.int64]:
    """None where the engine keys pairs of tokens (SGLang with EAGLE): such a block has no key here."""
    if set(map(type, ids)) - {int}:
        return np.empty(0, dtype=np.int64)
    return np.array(ids, dtype=np.int64)


def _removed(fields: dict[str, Any]) -> BlockRemoved:
    wire = msgspec.convert(fields, _WireRemoved)
    return BlockRemoved(_tier(wire.group_idx, wire.medium), wire.block_hashes)


def _tier(group: int | None, medium: str | None) -> Tier:
    """Each tier is a table of its own: garbage must not make any number of them."""
    tier = Tier(DEFAULT_GROUP if group is None else group, medium or _DEFAULT_MEDIUM)
    if not 0 <= tier.group < MAX_TIERS or len(tier.medium) > MAX_MEDIUM_LENGTH:
        raise EventDecodeError(f"no tier: group {tier.group}, medium {tier.medium[:MAX_MEDIUM_LENGTH]!r}")
    return tier


def _all_extras(wire: _WireStored, lora: str) -> tuple[BlockExtras, ...]:
    if wire.extra_keys:
        if not any(wire.extra_keys):
            return (NO_EXTRAS,) * len(wire.extra_keys)
        may_be_salted = wire.parent_block_hash is None
        return tuple(
            _extras(keys, lora, may_be_salted and block == 0) for block, keys in enumerate(wire.extra_keys)
        )
    if wire.cache_salt and wire.block_hashes:
        return (BlockExtras(salt=wire.cache_salt),) + (NO_EXTRAS,) * (len(wire.block_hashes) - 1)
    return ()


def _extras(keys: list[Any] | None, lora: str, may_be_salted: bool) -> BlockExtras:
    """One block's extra keys: the adapter's name, `[identifier, offset]` pairs, the salt, digests."""
    if not keys:
        return NO_EXTRAS
    if lora and keys[0] == lora:
        keys = keys[1:]
    media: list[tuple[MediaId, int]] = []
    salt = ""
    for key in keys:
        match key:
            case [str(identifier), int(offset)] if abs(offset) < _MAX_OFFSET:
                media.append((MediaId.from_engine(identifier), offset))
            case str(text) if may_be_salted and not salt:
                salt = text
            case _:
                return _OPAQUE
    return BlockExtras(tuple(media), salt)
