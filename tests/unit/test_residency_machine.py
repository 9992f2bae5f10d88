"""What an engine holds, against a naive twin and a reader that sees only deltas."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from event_publisher import CLEARED, removed, stored
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_residency import NaiveResidency

from router.events import decode_batch
from router.residency import Residency
from sightline_types import KeyScheme, KeySpec, MediaId, Tier, TierDelta

SIZE = 4
TIERS = (Tier(0, "GPU"), Tier(0, "CPU"), Tier(1, "GPU"))
PICTURE, OTHER = MediaId(0xABCDEF).engine_uuid, MediaId(0x123456).engine_uuid

#: What one block may be: its token (repeated) and its extra keys.
BLOCKS: tuple[tuple[int, list[Any]], ...] = (
    (1, []),
    (2, []),
    (2, [[PICTURE, 1]]),
    (2, [[PICTURE, -3], [OTHER, 2]]),
    (2, [b"digest of embeddings"]),
)
#: What a prompt may start from: salt and adapter.
ROOTS = (("", ""), ("tenant", ""), ("", "ad"), ("ad", "ad"))


class Prompt(NamedTuple):
    """blocks: indices into `BLOCKS`. variant: two engine hashes of one content, as of two adapter paths."""

    root: int
    blocks: tuple[int, ...]
    variant: int

    def block_hash(self, num_blocks: int) -> int:
        """The engine's name of the last of the first `num_blocks` blocks."""
        return xxhash.xxh3_64_intdigest(repr((self.root, self.blocks[:num_blocks], self.variant)).encode())

    def extra_keys(self, block: int) -> list[Any] | None:
        salt, lora = ROOTS[self.root]
        salts = [salt] if salt and block == 0 else []
        return [*([lora] if lora else []), *BLOCKS[self.blocks[block]][1], *salts] or None

    def event(self, first: int, tier: Tier) -> dict[str, Any]:
        """Its blocks from the `first` one on, stored."""
        places = range(first, len(self.blocks))
        return stored(
            [self.block_hash(place + 1) for place in places],
            [BLOCKS[self.blocks[place]][0] for place in places for _ in range(SIZE)],
            self.block_hash(first) if first else None,
            SIZE,
            medium=tier.medium,
            group_idx=tier.group,
            lora_name=ROOTS[self.root][1] or None,
            extra_keys=[self.extra_keys(place) for place in places],
        )


def unreadable(event: dict[str, Any], how: str) -> dict[str, Any]:
    """The same blocks, told in a way that their keys cannot be made from."""
    match how:
        case "masked":
            return event | {"token_ids": event["token_ids"][:-1]}
        case "placeholder":
            return event | {"token_ids": [], "block_size": 0, "extra_keys": None}
        case _:
            return event | {"token_ids": event["token_ids"] * 2, "block_size": 2 * SIZE}


#: Few enough that the same blocks come again.
prompts = st.builds(
    Prompt,
    st.sampled_from([0, 0, 0, 0, 1, 2, 3]),
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4]), min_size=1, max_size=3).map(tuple),
    st.sampled_from([0, 0, 0, 1]),
)


def unpack(keys: bytes) -> set[int]:
    unpacked = np.frombuffer(keys, "<u8").tolist()
    assert len(set(unpacked)) == len(unpacked)
    return set(unpacked)


def tables(deltas: tuple[TierDelta, ...]) -> dict[Tier, set[int]]:
    assert not any(delta.removed for delta in deltas)
    return {delta.tier: unpack(delta.stored) for delta in deltas}


@settings(deadline=None, max_examples=100, stateful_step_count=50)
class ResidencyMachine(RuleBasedStateMachine):
    """Blocks come from any place of a prompt on, so parents are known, unknown, or still to come."""

    @initialize(counts=st.booleans())
    def begin(self, counts: bool) -> None:
        self.held = Residency(KeySpec(KeyScheme.VLLM, SIZE), counts=counts)
        self.naive = NaiveResidency(SIZE, counts=counts)
        self.reader: dict[Tier, set[int]] = {tier: set() for tier in TIERS}
        self.told: list[tuple[Prompt, int, Tier]] = []

    def apply(self, event: dict[str, Any]) -> None:
        (decoded,) = decode_batch(msgspec.msgpack.encode([0.0, [event]])).events
        self.held.apply(decoded)

    def store_both(self, event: dict[str, Any]) -> None:
        self.apply(event)
        self.naive.store(event)

    def remove_both(self, event: dict[str, Any]) -> None:
        self.apply(event)
        self.naive.remove(event)

    def tell(self, prompt: Prompt, first: int, tier: Tier) -> None:
        self.store_both(prompt.event(first, tier))
        self.told.append((prompt, first, tier))

    @rule(prompt=prompts, tier=st.sampled_from(TIERS))
    def store_whole(self, prompt: Prompt, tier: Tier) -> None:
        self.tell(prompt, 0, tier)

    @rule(prompt=prompts, first=st.integers(0, 2), tier=st.sampled_from(TIERS))
    def store_rest(self, prompt: Prompt, first: int, tier: Tier) -> None:
        self.tell(prompt, min(first, len(prompt.blocks) - 1), tier)

    @precondition(lambda self: self.told)
    @rule(data=st.data(), is_twin=st.booleans())
    def store_again(self, data: st.DataObject, is_twin: bool) -> None:
        prompt, first, tier = data.draw(st.sampled_from(self.told))
        self.tell(prompt._replace(variant=prompt.variant ^ is_twin), first, tier)

    @precondition(lambda self: any(first for _, first, _ in self.told))
    @rule(data=st.data(), from_start=st.booleans())
    def store_what_came_before(self, data: st.DataObject, from_start: bool) -> None:
        """The parent at last; only it, so that it may have to wait itself, or all from the start."""
        prompt, first, tier = data.draw(st.sampled_from([told for told in self.told if told[1]]))
        parent = prompt._replace(blocks=prompt.blocks[:first])
        self.tell(parent, 0 if from_start else first - 1, tier)

    @precondition(lambda self: self.told)
    @rule(data=st.data(), kind=st.integers(0, len(BLOCKS) - 1))
    def store_what_comes_after(self, data: st.DataObject, kind: int) -> None:
        prompt, _, tier = data.draw(st.sampled_from(self.told))
        longer = prompt._replace(blocks=(*prompt.blocks, kind))
        self.tell(longer, len(prompt.blocks), tier)

    @rule(
        prompt=prompts,
        first=st.integers(0, 2),
        tier=st.sampled_from(TIERS),
        how=st.sampled_from(["masked", "placeholder", "other size"]),
    )
    def store_unreadable(self, prompt: Prompt, first: int, tier: Tier, how: str) -> None:
        first = min(first, len(prompt.blocks) - 1)
        self.store_both(unreadable(prompt.event(first, tier), how))
        self.told.append((prompt, first, tier))

    @precondition(lambda self: self.naive.copies)
    @rule(data=st.data(), number=st.integers(1, 2))
    def remove(self, data: st.DataObject, number: int) -> None:
        """Removed `number` times, which may be once too often."""
        tier, block_hash = data.draw(st.sampled_from(self.naive.copies))
        self.remove_both(removed([block_hash] * number, medium=tier.medium, group_idx=tier.group))

    @rule(tier=st.sampled_from(TIERS), prompt=prompts)
    def remove_perhaps_unknown(self, tier: Tier, prompt: Prompt) -> None:
        block_hash = prompt.block_hash(len(prompt.blocks))
        self.remove_both(removed([block_hash], medium=tier.medium, group_idx=tier.group))

    @precondition(lambda self: len(self.naive.copies) > 8)
    @rule(is_new_epoch=st.booleans())
    def forget(self, is_new_epoch: bool) -> None:
        """Emptied by the engine, or with the reader, who then starts from nothing too."""
        if is_new_epoch:
            self.held.reset()
            self.reader = {tier: set() for tier in TIERS}
        else:
            self.apply(CLEARED)
        self.naive.clear()

    @rule()
    def drain(self) -> None:
        """Each key is told once when it comes and once when it goes: a sum of drains is the table."""
        assert self.held.has_changes == (self.naive.table() != self.reader_table())
        for delta in self.held.drain():
            arrived, gone = unpack(delta.stored), unpack(delta.removed)
            assert not arrived & self.reader[delta.tier]
            assert gone <= self.reader[delta.tier]
            self.reader[delta.tier] = self.reader[delta.tier] - gone | arrived
        assert not self.held.has_changes
        assert self.reader_table() == self.naive.table()

    def reader_table(self) -> dict[Tier, set[int]]:
        return {tier: keys for tier, keys in self.reader.items() if keys}

    @invariant()
    def agrees_with_the_naive_twin(self) -> None:
        self.held.check_integrity()
        assert tables(self.held.table()) == self.naive.table()
        assert self.held.num_blocks() == sum(map(len, self.naive.table().values()))
        assert self.held.faults.unknown_removals == self.naive.unknown_removals


TestResidencyMachine = ResidencyMachine.TestCase
