"""Decoding of engine events, both wire forms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from event_publisher import stored
from hypothesis import given, settings
from hypothesis import strategies as st

from router.events import (
    AllCleared,
    BlockExtras,
    BlockRemoved,
    BlockStored,
    EventDecodeError,
    KVEvent,
    UnknownEvent,
    decode_batch,
)
from sightline_types import MediaId, Tier

# As vLLM 0.32.0 published it (one block of 32 tokens with a picture from position 4 on).
REAL_STORED = {
    "type": "BlockStored",
    "block_hashes": [14340199865065161554],
    "parent_block_hash": None,
    "token_ids": [1, 295, 207, 3, *[6] * 28],
    "block_size": 32,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [[["my-uuid-000", 4]]],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
MEDIA = MediaId.from_engine("u")


def decode_one(event: Any) -> KVEvent:
    (decoded,) = decode_batch(msgspec.msgpack.encode([1.5, [event], 0])).events
    return decoded


def decode_stored(event: Any) -> BlockStored:
    decoded = decode_one(event)
    assert isinstance(decoded, BlockStored)
    return decoded


def extras_of(*keys: Any, **fields: Any) -> tuple[BlockExtras, ...]:
    number = len(keys)
    event = stored(range(number), [0] * number * 4, extra_keys=list(keys), **fields)
    return decode_stored(event).extras


def test_a_map_as_vllm_publishes_it_is_read() -> None:
    event = decode_stored(REAL_STORED)
    assert event.hashes == (14340199865065161554,)
    assert (event.parent, event.block_size, event.tier) == (None, 32, Tier(0, "GPU"))
    assert event.token_ids.tolist() == REAL_STORED["token_ids"]
    assert event.extras == (BlockExtras(((MediaId.from_engine("my-uuid-000"), 4),)),)


def test_an_array_says_the_same_as_a_map() -> None:
    names = list(REAL_STORED)[: list(REAL_STORED).index("group_idx") + 1]
    array = decode_stored([REAL_STORED[name] for name in names])
    mapped = decode_stored(REAL_STORED)
    assert array.token_ids.tolist() == mapped.token_ids.tolist()
    for name in ("tier", "hashes", "parent", "block_size", "lora", "extras"):
        assert getattr(array, name) == getattr(mapped, name)


def test_a_map_may_leave_out_what_is_as_usual() -> None:
    event = decode_stored({"type": "BlockStored", "block_hashes": [5], "token_ids": [1, 2], "block_size": 2})
    assert (event.hashes, event.parent, event.tier, event.lora, event.extras) == ((5,), None, Tier(), "", ())
    assert decode_one({"type": "BlockRemoved", "block_hashes": [7]}) == BlockRemoved(Tier(), (7,))


def test_an_array_may_end_early() -> None:
    event = decode_stored(["BlockStored", [-5], -9, [1, 2, 3, 4], 4, None])
    assert (event.hashes, event.parent, event.tier, event.extras) == ((-5,), -9, Tier(), ())


def test_an_array_of_a_later_release_may_be_longer() -> None:
    fields = [[1], None, [1, 2, 3, 4], 4, None, "CPU", None, None, 2, "full_attention", None, "LOCAL", "new"]
    assert decode_stored(["BlockStored", *fields]).tier == Tier(2, "CPU")


def test_removals_and_clearings_are_read_in_both_forms() -> None:
    removal = BlockRemoved(Tier(1, "CPU"), (7, 8))
    assert decode_one(["BlockRemoved", [7, 8], "CPU", 1]) == removal
    assert (
        decode_one({"type": "BlockRemoved", "block_hashes": [7, 8], "medium": "CPU", "group_idx": 1})
        == removal
    )
    assert decode_one(["BlockRemoved", [7]]) == BlockRemoved(Tier(), (7,))
    assert decode_one(["AllBlocksCleared"]) == decode_one({"type": "AllBlocksCleared"}) == AllCleared()


def test_removals_in_a_row_are_one_event_and_keep_their_place() -> None:
    removals = [{"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU"} for block in (3, 1, 2)]
    elsewhere = {"type": "BlockRemoved", "block_hashes": [4], "medium": "CPU"}
    wire = [*removals, elsewhere, stored([5], range(4)), removals[0]]
    first, second, third, last = decode_batch(msgspec.msgpack.encode([1.5, wire, 0])).events
    assert (first, second) == (BlockRemoved(Tier(), (3, 1, 2)), BlockRemoved(Tier(0, "CPU"), (4,)))
    assert isinstance(third, BlockStored) and third.hashes == (5,)
    assert last == BlockRemoved(Tier(), (3,))


@pytest.mark.parametrize("strange", [{"type": "BlockMoved"}, ["BlockRemoved", [9]]])
def test_an_event_of_another_release_changes_nothing_about_its_neighbours(strange: Any) -> None:
    wire = [REAL_STORED, {"type": "BlockRemoved", "block_hashes": [7]}, {"type": "AllBlocksCleared"}]
    first, *others = decode_batch(msgspec.msgpack.encode([1.5, [*wire, strange], 0])).events
    assert isinstance(first, BlockStored) and first.hashes == (14340199865065161554,)
    assert first.token_ids.tolist() == REAL_STORED["token_ids"]
    assert others[:2] == [BlockRemoved(Tier(), (7,)), AllCleared()]


def test_hashes_may_be_bytes() -> None:
    event = decode_stored(stored([], range(4)) | {"block_hashes": [b"\x01" * 32], "parent_block_hash": b"p"})
    assert (event.hashes, event.parent) == ((b"\x01" * 32,), b"p")


def test_a_picture_that_began_earlier_has_a_negative_offset() -> None:
    assert extras_of([["u", 4]], [["u", -28], ["v", 23]]) == (
        BlockExtras(((MEDIA, 4),)),
        BlockExtras(((MEDIA, -28), (MediaId.from_engine("v"), 23))),
    )


def test_a_block_without_extra_keys_is_plain() -> None:
    assert extras_of(None, []) == (BlockExtras(), BlockExtras())


def test_the_salt_is_told_from_the_adapters_name() -> None:
    assert extras_of(["ad", ["u", 4], "tenant"], ["ad"], lora_name="ad") == (
        BlockExtras(((MEDIA, 4),), salt="tenant"),
        BlockExtras(),
    )


def test_a_salt_may_be_spelled_like_the_adapter() -> None:
    assert extras_of(["ad", "ad"], lora_name="ad") == (BlockExtras(salt="ad"),)


@pytest.mark.parametrize("digest", [b"\x00" * 32, "a string that is no salt", 5, ["u", "4"], ["u", 1 << 63]])
def test_what_no_request_can_be_asked_for_makes_a_block_opaque(digest: Any) -> None:
    assert extras_of(None, [["u", 4], digest])[1].opaque


def test_a_string_in_a_later_part_of_a_prompt_is_no_salt() -> None:
    (extras,) = extras_of(["text"], parent_block_hash=9)
    assert extras.opaque and not extras.salt


def test_sglangs_salt_has_a_field_of_its_own() -> None:
    event = decode_stored(stored([1, 2], range(8), cache_salt="tenant"))
    assert event.extras == (BlockExtras(salt="tenant"), BlockExtras())
    array = ["BlockStored", [1], None, [1, 2, 3, 4], 4, None, "GPU", {"cache_salt": "tenant"}]
    assert decode_stored(array).extras == (BlockExtras(salt="tenant"),)


def test_sglangs_pad_values_fit() -> None:
    assert decode_stored(stored([1], [1 << 62] * 4)).token_ids.tolist() == [1 << 62] * 4


def test_a_block_of_token_pairs_is_held_without_credit() -> None:
    """SGLang with EAGLE keys pairs of neighbouring tokens."""
    event = decode_stored(stored([1], [(1, 2), (2, 3), (3, 4), (4, 5)]))
    assert event.hashes == (1,) and not event.covers_blocks


def test_sglangs_hashes_are_signed_and_its_media_have_names_of_their_own() -> None:
    event = decode_stored(stored([-(1 << 63), 5], range(8), medium="CPU_PINNED", parent_block_hash=-7))
    assert (event.hashes, event.parent, event.tier.medium) == ((-(1 << 63), 5), -7, "CPU_PINNED")
    gone = decode_one({"type": "BlockRemoved", "block_hashes": [-7], "medium": "DISK"})
    assert gone == BlockRemoved(Tier(medium="DISK"), (-7,))


def test_an_event_says_whether_its_tokens_cover_its_blocks() -> None:
    assert decode_stored(stored([1, 2], range(8))).covers_blocks
    assert not decode_stored(stored([1], range(8))).covers_blocks
    assert not decode_stored(stored([1], [], block_size=0)).covers_blocks
    assert not decode_stored(stored([1, 2], range(8), extra_keys=[None])).covers_blocks


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert decode_one({"type": "BlockMoved", "x": 1}) == UnknownEvent("BlockMoved")
    assert decode_one(["BlockMoved", 1]) == UnknownEvent("BlockMoved")
    assert decode_stored(stored([1], range(4), new_field={"a": 1})).hashes == (1,)


def test_a_batch_names_its_time_and_rank() -> None:
    batch = decode_batch(msgspec.msgpack.encode([2.5, [], 3]))
    assert (batch.ts, batch.events, batch.dp_rank) == (2.5, (), 3)
    assert decode_batch(msgspec.msgpack.encode([2.5, []])).dp_rank is None


@pytest.mark.parametrize(
    "batch",
    [
        {"ts": 1.0},
        [1.0, "events"],
        [1.0, [5]],
        [1.0, [[]]],
        [1.0, [{"block_hashes": [1]}]],
        [1.0, [["BlockStored", ["a"], None, [1], 1]]],
        [1.0, [["BlockStored", [1]]]],
        [1.0, [["BlockStored", [1], None, [1 << 63], 1]]],
        [1.0, [["BlockRemoved", None]]],
    ],
)
def test_a_malformed_batch_is_refused(batch: Any) -> None:
    with pytest.raises(EventDecodeError):
        decode_batch(msgspec.msgpack.encode(batch))


@given(st.binary(max_size=64))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_a_batch_or_a_decode_error(payload: bytes) -> None:
    try:
        decode_batch(payload)
    except EventDecodeError:
        pass


_json = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)
_fields = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_name",
    "extra_keys",
    "medium",
)


@given(st.sampled_from(["BlockStored", "BlockRemoved"]), st.dictionaries(st.sampled_from(_fields), _json))
@settings(deadline=None, max_examples=200)
def test_any_field_values_are_an_event_or_a_decode_error(tag: str, fields: dict[str, Any]) -> None:
    event = stored([1], range(4)) | fields | {"type": tag}
    try:
        decode_one(event)
    except EventDecodeError:
        pass


def test_lists_nested_without_end_are_refused() -> None:
    with pytest.raises(EventDecodeError):
        decode_batch(b"\x92\x01" + b"\x91" * 100_000)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
@settings(deadline=None, max_examples=200)
def test_a_batch_garbled_anywhere_is_a_batch_or_a_decode_error(place: int, garbage: bytes) -> None:
    whole = msgspec.msgpack.encode([1.5, [REAL_STORED, ["BlockRemoved", [b"hash"], "CPU", 1]], 0])
    start = place % len(whole)
    for payload in (whole[:start] + garbage + whole[start + len(garbage) :], whole[:start]):
        try:
            decode_batch(payload)
        except EventDecodeError:
            pass


@pytest.mark.parametrize("fields", [{"group_idx": 64}, {"group_idx": -1}, {"medium": "m" * 33}])
def test_a_tier_that_cannot_be_is_garbage(fields: dict[str, Any]) -> None:
    event = {"type": "BlockRemoved", "block_hashes": [1], **fields}
    with pytest.raises(EventDecodeError, match="no tier"):
        decode_batch(msgspec.msgpack.encode([0.0, [event], 0]))
