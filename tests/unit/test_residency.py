"""What an engine holds, by its events: examples. Against a naive twin: `test_residency_machine`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from event_publisher import CLEARED, block, removed, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from router import residency as residency_module
from router.events import UnknownEvent, decode_batch
from router.keys import block_keys, chain_key, root_key
from router.residency import Residency
from sightline_types import (
    KeyScheme,
    KeySpec,
    MediaId,
    MediaSpan,
    Tier,
    TierDelta,
    TokenView,
)

SPEC = KeySpec(KeyScheme.VLLM, 4)
GPU, CPU = Tier(0, "GPU"), Tier(0, "CPU")


def apply(held: Residency, *events: dict[str, Any]) -> None:
    """Through the wire form, as a relay would."""
    for event in decode_batch(msgspec.msgpack.encode([0.0, list(events)])).events:
        held.apply(event)
        held.check_integrity()


def keys_of(deltas: Iterable[TierDelta], field: str = "stored") -> dict[Tier, set[int]]:
    unpacked = {d.tier: set(np.frombuffer(getattr(d, field), "<u8").tolist()) for d in deltas}
    return {tier: keys for tier, keys in unpacked.items() if keys}


def prompt_keys(tokens: Sequence[int], spans: tuple[MediaSpan, ...] = (), **root: str) -> list[int]:
    """The keys a request for these tokens is looked up with."""
    view = TokenView(np.array(tokens, dtype=np.int64), spans, len(tokens))
    return block_keys(view, SPEC, **root).key_array().tolist()


def block_key(*numbers: int) -> int:
    """The key of the last of a chain of `block`s."""
    key = root_key(KeyScheme.VLLM)
    for number in numbers:
        key = chain_key(key, np.arange(number * 4, number * 4 + 4), ())
    return key


def test_stored_blocks_have_the_keys_a_request_has() -> None:
    held = Residency(SPEC)
    apply(held, stored([1, 2], range(8)), stored([3], range(8, 12), parent=2))
    assert keys_of(held.drain()) == {GPU: set(prompt_keys(range(12)))}


def test_a_picture_enters_the_keys_as_in_a_request() -> None:
    held = Residency(SPEC)
    ours = MediaId(0xABCDEF)
    extra_keys = [None, [[ours.engine_uuid, 1]], [[ours.engine_uuid, -3]]]
    apply(held, stored([1, 2, 3], range(12), extra_keys=extra_keys))
    assert keys_of(held.table())[GPU] == set(prompt_keys(range(12), (MediaSpan(5, 6, ours),)))


def test_salt_and_adapter_enter_the_root() -> None:
    held = Residency(SPEC)
    apply(
        held,
        stored([1], range(4), extra_keys=[["secret"]]),
        stored([2], range(4), lora_name="ad", extra_keys=[["ad"]]),
        stored([3], range(4), lora_name="ad", extra_keys=[["ad", "secret"]]),
    )
    roots: list[dict[str, str]] = [{"salt": "secret"}, {"lora": "ad"}, {"salt": "secret", "lora": "ad"}]
    assert keys_of(held.table())[GPU] == {prompt_keys(range(4), **root)[0] for root in roots}


def test_a_block_stored_three_times_goes_with_its_third_removal() -> None:
    held = Residency(SPEC)
    apply(held, block(1), block(1), block(1))
    held.drain()
    apply(held, removed([1]), removed([1]))
    assert held.drain() == () and held.num_blocks() == 1
    apply(held, removed([1]))
    assert keys_of(held.drain(), "removed") == {GPU: {block_key(1)}}


def test_with_set_semantics_one_removal_is_enough() -> None:
    held = Residency(SPEC, counts=False)
    apply(held, block(1), block(1), removed([1]))
    assert held.num_blocks() == 0


def test_two_engine_hashes_of_one_key_keep_it_until_both_are_gone() -> None:
    held = Residency(SPEC)
    apply(held, stored([1], range(4)), stored([2], range(4)))
    held.drain()
    apply(held, removed([1]))
    assert held.drain() == ()
    apply(held, removed([2]))
    assert keys_of(held.drain(), "removed") == {GPU: set(prompt_keys(range(4)))}


def test_what_is_stored_and_removed_between_two_drains_is_no_change() -> None:
    held = Residency(SPEC)
    apply(held, block(1), removed([1]))
    assert not held.has_changes and held.drain() == ()
    apply(held, block(1))
    held.drain()
    apply(held, removed([1]), block(1))
    assert not held.has_changes and held.drain() == ()


def test_tiers_are_told_apart() -> None:
    held = Residency(SPEC)
    apply(held, block(1), block(1) | {"medium": "CPU"}, block(1) | {"group_idx": 1})
    assert set(keys_of(held.table())) == {GPU, CPU, Tier(1, "GPU")}
    held.drain()
    apply(held, removed([1]))
    assert set(keys_of(held.drain(), "removed")) == {GPU}


def test_a_parent_in_another_medium_or_group_will_do() -> None:
    held = Residency(SPEC)
    apply(held, block(1) | {"medium": "CPU"}, block(2, 1), block(3, 1) | {"group_idx": 1})
    table = keys_of(held.table())
    assert table[GPU] == {block_key(1, 2)}
    assert table[Tier(1, "GPU")] == {block_key(1, 3)}


def test_a_known_block_stands_in_for_its_unknown_parent() -> None:
    held = Residency(SPEC)
    apply(held, block(1), stored([1, 2], range(4, 12), parent=99))
    assert keys_of(held.table())[GPU] == {block_key(1), block_key(1, 2)}
    assert held.faults.orphans == 0


def test_a_block_waits_for_its_parent() -> None:
    held = Residency(SPEC)
    apply(held, block(3, 2), block(2, 1))
    assert held.num_blocks() == 0 and held.faults.orphans == 2
    apply(held, block(1))
    assert keys_of(held.drain())[GPU] == {block_key(1), block_key(1, 2), block_key(1, 2, 3)}


def test_a_block_removed_while_it_waits_earns_nothing_but_those_after_it_do() -> None:
    held = Residency(SPEC)
    apply(held, block(2, 1), block(3, 2), removed([2]), block(1))
    assert keys_of(held.table())[GPU] == {block_key(1)}
    apply(held, block(2, 1))
    assert keys_of(held.table())[GPU] == {block_key(1), block_key(1, 2), block_key(1, 2, 3)}


def test_waiting_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency_module, "MAX_ORPHAN_BLOCKS", 3)
    held = Residency(SPEC)
    apply(held, *(block(number, number + 100) for number in range(1, 6)))
    assert held.faults.dropped_orphans == 2
    apply(held, block(101), block(105))
    assert keys_of(held.table())[GPU] == {block_key(101), block_key(105), block_key(105, 5)}


def test_tokens_that_do_not_cover_the_blocks_earn_no_credit_but_are_counted() -> None:
    held = Residency(SPEC)
    apply(held, stored([1], range(8)), block(2, 1), removed([1]), removed([2]))
    assert held.drain() == ()
    assert held.faults.without_credit == 2 and held.faults.unknown_removals == 0


def test_a_placeholder_has_the_key_that_its_hash_had_elsewhere() -> None:
    held = Residency(SPEC)
    placeholder = stored([1], [], block_size=0, medium="CPU")
    apply(held, block(1), placeholder)
    assert keys_of(held.table()) == {GPU: {block_key(1)}, CPU: {block_key(1)}}


def test_a_placeholder_that_came_first_learns_its_key() -> None:
    held = Residency(SPEC)
    apply(held, stored([1], [], block_size=0, medium="CPU"), block(1))
    assert keys_of(held.table()) == {GPU: {block_key(1)}, CPU: {block_key(1)}}


def test_an_opaque_block_and_those_after_it_earn_no_credit() -> None:
    held = Residency(SPEC)
    apply(held, stored([1, 2, 3], range(12), extra_keys=[None, [b"digest"], None]), block(4, 3))
    assert keys_of(held.table())[GPU] == set(prompt_keys(range(4)))
    assert held.faults.without_credit == 3 and held.faults.orphans == 0


def test_another_block_size_earns_no_credit() -> None:
    held = Residency(SPEC)
    apply(held, stored([1], range(8), block_size=8), removed([1]))
    assert held.drain() == () and held.faults.other_block_sizes == 1


def test_removing_what_is_not_held_is_counted() -> None:
    held = Residency(SPEC)
    apply(held, removed([1, 2]))
    assert held.faults.unknown_removals == 2 and held.drain() == ()


def test_clearing_removes_what_was_told_and_cancels_what_was_not() -> None:
    held = Residency(SPEC)
    apply(held, block(1))
    held.drain()
    apply(held, block(2), block(9, 8), CLEARED)
    (delta,) = held.drain()
    assert keys_of([delta], "removed") == {GPU: {block_key(1)}} and not delta.stored
    apply(held, block(8))
    assert keys_of(held.table())[GPU] == {block_key(8)}


def test_a_reset_leaves_nothing_to_drain() -> None:
    held = Residency(SPEC)
    apply(held, block(1))
    held.drain()
    held.reset()
    assert held.drain() == held.table() == () and held.num_blocks() == 0


def test_an_unknown_event_is_counted() -> None:
    held = Residency(SPEC)
    held.apply(UnknownEvent("BlockMoved"))
    assert held.faults.unknown_events == 1


def test_bytes_hashes_work_like_integers() -> None:
    held = Residency(SPEC)
    first = stored([], range(4)) | {"block_hashes": [b"a" * 32]}
    second = stored([], range(4, 8)) | {"block_hashes": [b"b" * 32], "parent_block_hash": b"a" * 32}
    apply(held, first, second)
    assert keys_of(held.table())[GPU] == set(prompt_keys(range(8)))


def chain_events(depth: int, prompts: int) -> list[dict[str, Any]]:
    """Prompts that share their first blocks, one event a block."""
    events = []
    for prompt in range(prompts):
        parent = None
        for level in range(depth):
            number = 1 + level if level < depth // 2 else 1 + level + depth * (prompt + 1)
            events.append(block(number, parent))
            parent = number
    return events


@given(st.integers(1, 6), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_the_order_in_which_blocks_come_does_not_matter(depth: int, prompts: int, random: Random) -> None:
    events = chain_events(depth, prompts)
    in_order, shuffled = Residency(SPEC), Residency(SPEC)
    apply(in_order, *events)
    random.shuffle(events)
    apply(shuffled, *events)
    assert keys_of(shuffled.table()) == keys_of(in_order.table())
