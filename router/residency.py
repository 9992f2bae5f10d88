"""What one engine holds, as block keys: its KV events applied one by one.

An engine may store one block several times and remove it as often (vLLM keeps duplicates, and the last
block of a fully cached prompt is always computed again), so blocks are counted per engine hash and tier.
Two engine hashes can come to one key (the engine's hash covers an adapter's path, ours its name), so
keys are counted too. Only a key's first store and its last removal are a change.

A block is *held without credit* where its key cannot be known: it is counted, so that its removal is
understood, but it is in no delta, and nor are the blocks after it.

An engine hash names a prefix, whichever cache group holds its last block (vLLM 0.32 hashes once for all
groups). So a key that one group's event tells is every group's: a Mamba group stores the state of a
chunk's last block only, with tokens that do not tell which block it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from router.events import (
    AllCleared,
    BlockExtras,
    BlockRemoved,
    BlockStored,
    EngineHash,
    KVEvent,
    UnknownEvent,
)
from router.keys import chain_key, chain_keys, root_key
from router.usable import PLAIN_GROUPS
from sightline_types import BlockKey, KeySpec, KvGroup, Tier, TierDelta

__all__ = ["Residency", "ResidencyFaults"]

#: Blocks that wait for their parent at most; at 128 tokens a block, 4 MiB of tokens.
MAX_ORPHAN_BLOCKS = 4096


@dataclass(slots=True)
class ResidencyFaults:
    """What went other than smoothly since the beginning.

    unknown_removals: of blocks not held.
    orphans: blocks whose parent was not known when they came.
    dropped_orphans: of these, held without credit because too many waited.
    other_block_sizes: blocks whose size is not that of their group in the contract, held without credit.
    without_credit: all other blocks held without credit.
    unknown_events: of a kind that this version does not know.
    """

    unknown_removals: int = 0
    orphans: int = 0
    dropped_orphans: int = 0
    other_block_sizes: int = 0
    without_credit: int = 0
    unknown_events: int = 0


@dataclass(slots=True)
class _Entry:
    """One engine hash in one tier. key: None while held without credit. waits: for its parent."""

    key: BlockKey | None = None
    count: int = 0
    waits: bool = False


@dataclass(slots=True)
class _TierState:
    """One tier: its blocks by engine hash, how many of them make each key, and the change since a drain."""

    entries: dict[EngineHash, _Entry] = field(default_factory=dict)
    held: dict[BlockKey, int] = field(default_factory=dict)
    stored: set[BlockKey] = field(default_factory=set)
    removed: set[BlockKey] = field(default_factory=set)

    def take(self, key: BlockKey) -> None:
        count = self.held.get(key, 0)
        self.held[key] = count + 1
        if count:
            return
        if key in self.removed:
            self.removed.remove(key)
        else:
            self.stored.add(key)

    def release(self, key: BlockKey) -> None:
        count = self.held[key]
        if count > 1:
            self.held[key] = count - 1
            return
        del self.held[key]
        if key in self.stored:
            self.stored.remove(key)
        else:
            self.removed.add(key)

    def drain(self, tier: Tier) -> TierDelta:
        delta = TierDelta(tier, pack_keys(self.stored), pack_keys(self.removed))
        self.stored, self.removed = set(), set()
        return delta


class Residency:
    """The blocks of one engine, by tier.

    spec: the keys that are made, one per `spec.block_size` tokens.
    counts: whether the engine removes a block as often as it stored it (vLLM), or once (SGLang).
    groups: the contract's; an event with another block size than its group's earns no credit. Tiers are
        numbered by the group's place here; a group that is not among them keeps its number.
    """

    def __init__(
        self, spec: KeySpec, *, counts: bool = True, groups: Sequence[KvGroup] = PLAIN_GROUPS
    ) -> None:
        self._spec = spec
        self._counts = counts
        self._places = {group.index: place for place, group in enumerate(groups)}
        self._sizes = {group.index: group.block_size or spec.block_size for group in groups}
        self._tiers: dict[Tier, _TierState] = {}
        self._orphans: dict[EngineHash, list[BlockStored]] = {}
        self._orphan_blocks = 0
        self.faults = ResidencyFaults()

    def apply(self, event: KVEvent) -> None:
        """Take one event into account. Never raises for what an engine may send."""
        match event:
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                self._remove(event)
            case AllCleared():
                self._clear()
            case UnknownEvent():
                self.faults.unknown_events += 1

    def drain(self) -> tuple[TierDelta, ...]:
        """The net change since the last drain; a tier without one is left out."""
        return tuple(
            state.drain(tier) for tier, state in self._tiers.items() if state.stored or state.removed
        )

    def table(self) -> tuple[TierDelta, ...]:
        """Everything held, as stored. Does not drain."""
        return tuple(
            TierDelta(tier, pack_keys(state.held)) for tier, state in self._tiers.items() if state.held
        )

    def reset(self) -> None:
        """Forget everything, without a change to drain: for a table that starts from nothing."""
        self._tiers.clear()
        self._drop_orphans()

    @property
    def has_changes(self) -> bool:
        return any(state.stored or state.removed for state in self._tiers.values())

    def num_blocks(self) -> int:
        """Keys held, summed over tiers."""
        return sum(len(state.held) for state in self._tiers.values())

    def _store(self, event: BlockStored) -> None:
        known = [self._key_of(block_hash) for block_hash in event.hashes]
        keys = known if all(known) else self._learn(event, known)
        entries = self._state(event.tier).entries
        for block_hash, key in zip(event.hashes, keys, strict=True):
            entry = entries.get(block_hash)
            if entry is None:
                entry = entries[block_hash] = _Entry()
            entry.count = entry.count + 1 if self._counts else 1
            if key is not None:
                self._give_key(block_hash, key)
        if self._orphans:
            self._adopt(event.hashes)

    def _learn(self, event: BlockStored, known: list[BlockKey | None]) -> list[BlockKey | None]:
        """Keys from the event's content; where that cannot be, what is known already."""
        if not event.covers_blocks:
            self.faults.without_credit += known.count(None)
            return known
        if event.block_size != self._sizes.get(event.tier.group, self._spec.block_size):
            self.faults.other_block_sizes += known.count(None)
            return known
        parent = self._parent_key(event)
        if parent is None and known[0] is None and self._may_come(event):
            self._keep_orphan(event)
            return known
        keys = list(self._chain(event, parent, known))
        self.faults.without_credit += keys.count(None)
        return keys

    def _chain(
        self, event: BlockStored, parent: BlockKey | None, known: list[BlockKey | None]
    ) -> Iterator[BlockKey | None]:
        """Keys of the event's blocks after `parent`; None after a block that has none, until a known one."""
        if parent is not None and self._is_new_run(event, known):
            tokens = event.token_ids.reshape(len(event.hashes), event.block_size)
            extras_of_all = [extras.media for extras in event.extras]
            yield from chain_keys(parent, tokens, extras_of_all).tolist()
            return
        key = parent
        for block, known_key in enumerate(known):
            extras = event.block_extras(block)
            if known_key is not None:
                key = known_key
            elif key is None or extras.opaque:
                key = None
            else:
                key = self._next_key(key, event.block_tokens(block), extras)
            yield key

    def _is_new_run(self, event: BlockStored, known: list[BlockKey | None]) -> bool:
        """Nearly all events: blocks of one unit, none of them known, all of them to be known by content."""
        is_unit = event.block_size == self._spec.block_size
        return is_unit and not any(known) and not any(extras.opaque for extras in event.extras)

    def _next_key(self, key: BlockKey, tokens: npt.NDArray[np.int64], extras: BlockExtras) -> BlockKey | None:
        """The key of a block's end. A block of several units: where a medium lies in it is not told unit by
        unit, so that only another group's event can."""
        unit = self._spec.block_size
        if len(tokens) > unit and extras.media:
            return None
        for start in range(0, len(tokens), unit):
            key = chain_key(key, tokens[start : start + unit], extras.media)
        return key

    def _parent_key(self, event: BlockStored) -> BlockKey | None:
        if event.parent is not None:
            return self._key_of(event.parent)
        return root_key(self._spec.scheme, event.block_extras(0).salt, event.lora)

    def _key_of(self, block_hash: EngineHash) -> BlockKey | None:
        """The key of an engine hash, whichever group and medium told it."""
        for state in self._tiers.values():
            entry = state.entries.get(block_hash)
            if entry is not None and entry.key is not None:
                return entry.key
        return None

    def _entries(self, block_hash: EngineHash) -> Iterator[tuple[_TierState, _Entry]]:
        for state in self._tiers.values():
            entry = state.entries.get(block_hash)
            if entry is not None:
                yield state, entry

    def _state(self, tier: Tier) -> _TierState:
        """The state of the engine's own `tier`."""
        placed = Tier(self._places.get(tier.group, tier.group), tier.medium)
        state = self._tiers.get(placed)
        if state is None:
            state = self._tiers[placed] = _TierState()
        return state

    def _give_key(self, block_hash: EngineHash, key: BlockKey) -> None:
        """Wherever the block is held: one that was stored without content learns its key."""
        for state in self._tiers.values():
            entry = state.entries.get(block_hash)
            if entry is None:
                continue
            entry.waits = False
            if entry.key is None:
                entry.key = key
                state.take(key)

    def _may_come(self, event: BlockStored) -> bool:
        """Whether the parent's key may still become known: it is not held, or waits itself."""
        if event.parent is None:
            return False
        held = [entry for _, entry in self._entries(event.parent)]
        return not held or any(entry.waits for entry in held)

    def _keep_orphan(self, orphan: BlockStored) -> None:
        assert orphan.parent is not None
        entries = self._state(orphan.tier).entries
        for block_hash in orphan.hashes:
            entry = entries.setdefault(block_hash, _Entry())
            entry.waits = entry.key is None
        self._orphans.setdefault(orphan.parent, []).append(orphan)
        self._orphan_blocks += len(orphan.hashes)
        self.faults.orphans += len(orphan.hashes)
        while self._orphan_blocks > MAX_ORPHAN_BLOCKS:
            self._give_up(next(iter(self._orphans)))

    def _give_up(self, parent: EngineHash) -> None:
        for orphan in self._take_orphans(parent):
            self.faults.dropped_orphans += len(orphan.hashes)
            for block_hash in orphan.hashes:
                entry = self._state(orphan.tier).entries.get(block_hash)
                if entry is not None:
                    entry.waits = False

    def _take_orphans(self, parent: EngineHash) -> list[BlockStored]:
        orphans = self._orphans.pop(parent, [])
        self._orphan_blocks -= sum(len(orphan.hashes) for orphan in orphans)
        return orphans

    def _adopt(self, hashes: Iterable[EngineHash]) -> None:
        """Key the blocks that waited for these, then those that waited for them."""
        parents = list(hashes)
        while parents:
            parent = parents.pop()
            key = self._key_of(parent)
            if key is None:
                continue
            for orphan in self._take_orphans(parent):
                self._key_orphan(orphan, key)
                parents.extend(orphan.hashes)

    def _key_orphan(self, orphan: BlockStored, parent: BlockKey) -> None:
        known = [self._key_of(block_hash) for block_hash in orphan.hashes]
        for block_hash, key in zip(orphan.hashes, self._chain(orphan, parent, known), strict=True):
            if key is not None:
                self._give_key(block_hash, key)
                continue
            for _, entry in self._entries(block_hash):
                entry.waits = False

    def _remove(self, event: BlockRemoved) -> None:
        state = self._state(event.tier)
        for block_hash in event.hashes:
            entry = state.entries.get(block_hash)
            if entry is None:
                self.faults.unknown_removals += 1
                continue
            entry.count -= 1
            if entry.count:
                continue
            del state.entries[block_hash]
            if entry.key is not None:
                state.release(entry.key)

    def _clear(self) -> None:
        for state in self._tiers.values():
            for entry in state.entries.values():
                if entry.key is not None:
                    state.release(entry.key)
            state.entries.clear()
        self._drop_orphans()

    def _drop_orphans(self) -> None:
        self._orphans.clear()
        self._orphan_blocks = 0

    def check_integrity(self) -> None:
        """Audit the counts against each other.

        Raises:
            AssertionError: they disagree.
        """
        assert self._orphan_blocks == sum(
            len(orphan.hashes) for orphans in self._orphans.values() for orphan in orphans
        )
        assert self._orphan_blocks <= MAX_ORPHAN_BLOCKS
        for tier, state in self._tiers.items():
            keys = [entry.key for entry in state.entries.values() if entry.key is not None]
            assert all(entry.count > 0 for entry in state.entries.values()), tier
            assert len(keys) == sum(state.held.values()), tier
            assert set(keys) == set(state.held), tier
            assert all(keys), f"0 is never a key: {tier}"
            assert state.stored <= set(state.held), tier
            assert not state.removed & set(state.held), tier
            assert not any(entry.waits and entry.key is not None for entry in state.entries.values()), tier


def pack_keys(keys: Iterable[BlockKey]) -> bytes:
    """Little-endian uint64, ascending."""
    return np.sort(np.fromiter(keys, dtype="<u8")).tobytes()
