"""What an engine holds, the plain way: an oracle that shares no code with `router`.

Every copy of a block is an item of a list, keys are struct and xxh3_64 by the layout in `router.keys`, and
whatever waits for its parent is looked through after every event. It reads events in their map form.
"""

from __future__ import annotations

import struct
from typing import Any

import xxhash

from sightline_types import Tier

Event = dict[str, Any]


def naive_root(salt: str, lora: str) -> int:
    fields = (text.encode() for text in ("sightline/block-key/1", "vllm", salt, lora))
    return xxhash.xxh3_64_intdigest(b"".join(struct.pack("<Q", len(data)) + data for data in fields)) or 1


def naive_key(parent: int, tokens: list[int], media: list[tuple[int, int]]) -> int:
    data = struct.pack(f"<Q{len(tokens)}q", parent, *tokens)
    return xxhash.xxh3_64_intdigest(data + b"".join(struct.pack("<Qq", *item) for item in media)) or 1


class NaiveResidency:
    """copies: one item per store that no removal has met. keys: of the hashes held, in whatever tier."""

    def __init__(self, block_size: int, *, counts: bool) -> None:
        self.block_size = block_size
        self.counts = counts
        self.copies: list[tuple[Tier, int]] = []
        self.keys: dict[int, int] = {}
        self.waiting: list[Event] = []
        self.waits: set[tuple[Tier, int]] = set()
        self.unknown_removals = 0

    def table(self) -> dict[Tier, set[int]]:
        held: dict[Tier, set[int]] = {}
        for tier, block_hash in self.copies:
            if block_hash in self.keys:
                held.setdefault(tier, set()).add(self.keys[block_hash])
        return held

    def clear(self) -> None:
        self.copies, self.keys, self.waiting, self.waits = [], {}, [], set()

    def remove(self, event: Event) -> None:
        tier = _tier(event)
        for block_hash in event["block_hashes"]:
            if (tier, block_hash) not in self.copies:
                self.unknown_removals += 1
                continue
            self.copies.remove((tier, block_hash))
            if (tier, block_hash) not in self.copies:
                self.waits.discard((tier, block_hash))
            if not self._is_held(block_hash):
                self.keys.pop(block_hash, None)

    def store(self, event: Event) -> None:
        tier, hashes = _tier(event), event["block_hashes"]
        is_readable = self._is_readable(event) and any(h not in self.keys for h in hashes)
        must_wait = is_readable and self._must_wait(event)
        for block_hash in hashes:
            if self.counts or (tier, block_hash) not in self.copies:
                self.copies.append((tier, block_hash))
        if must_wait:
            self.waiting.append(event)
            self.waits |= {(tier, h) for h in hashes if h not in self.keys}
        elif is_readable:
            self._learn(event)
        while self._adopt_one():
            pass

    def _is_readable(self, event: Event) -> bool:
        fits = len(event["token_ids"]) == len(event["block_hashes"]) * event["block_size"]
        return fits and event["block_size"] == self.block_size

    def _must_wait(self, event: Event) -> bool:
        parent = event["parent_block_hash"]
        if parent is None or parent in self.keys or event["block_hashes"][0] in self.keys:
            return False
        return not self._is_held(parent) or any(waiter == parent for _, waiter in self.waits)

    def _is_held(self, block_hash: int) -> bool:
        return any(held == block_hash for _, held in self.copies)

    def _adopt_one(self) -> bool:
        for event in self.waiting:
            if event["parent_block_hash"] in self.keys:
                self.waiting.remove(event)
                self._learn(event)
                return True
        return False

    def _learn(self, event: Event) -> None:
        parent = event["parent_block_hash"]
        key = self.keys.get(parent) if parent is not None else self._root(event)
        for place, block_hash in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][place * self.block_size : (place + 1) * self.block_size]
            extras = (event["extra_keys"] or [None] * (place + 1))[place] or []
            if block_hash in self.keys:
                key = self.keys[block_hash]
            elif key is None or any(isinstance(extra, bytes) for extra in extras):
                key = None
            else:
                media = [(int(x[0][:16], 16), x[1]) for x in extras if isinstance(x, list)]
                key = naive_key(key, tokens, media)
            if key is not None and self._is_held(block_hash):
                self.keys[block_hash] = key
            self.waits = {(t, h) for t, h in self.waits if h != block_hash}

    @staticmethod
    def _root(event: Event) -> int:
        lora = event["lora_name"] or ""
        texts = [extra for extra in (event["extra_keys"] or [[]])[0] or [] if isinstance(extra, str)]
        return naive_root("".join(texts[bool(lora) :]), lora)


def _tier(event: Event) -> Tier:
    return Tier(event["group_idx"], event["medium"])
