"""A simulated engine's events, as a relay reads them: the keys come from the tokens, not from the hashes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.events import decode_batch
from router.keys import block_keys
from router.residency import Residency
from sightline_types import KeyScheme, KeySpec, MediaId, MediaSpan, Tier, TokenView
from simulation import CPU, Cleared, Removed, Stored
from simulation.wire import BlockContent, encode_batch

GOLDEN = Path(__file__).parents[1] / "data" / "vllm_kv_events.json"
BLOCK = 4
SPEC = KeySpec(KeyScheme.VLLM, BLOCK)
GPU_TIER = Tier()


def keys_of(content: BlockContent) -> np.ndarray:
    view = TokenView(content.token_ids, content.spans, len(content.token_ids))
    return block_keys(view, SPEC, salt=content.salt).key_array()


def held(*payloads: bytes) -> dict[Tier, set[int]]:
    residency = Residency(SPEC)
    for payload in payloads:
        for event in decode_batch(payload).events:
            residency.apply(event)
    assert residency.faults == type(residency.faults)()
    return {d.tier: set(np.frombuffer(d.stored, dtype="<u8").tolist()) for d in residency.table()}


def stored(content: BlockContent, first: int, end: int) -> Stored:
    keys = keys_of(content)
    return Stored("r", first, keys[first:end], int(keys[first - 1]) if first else None)


def test_an_event_has_the_fields_that_vllm_publishes():
    golden = json.loads(GOLDEN.read_text())
    content = BlockContent(
        np.array(golden["token_ids"], dtype=np.int64), (MediaSpan(4, 30, MediaId.from_hex(golden["media"])),)
    )
    event = Stored("r", 0, np.array([golden["hash"]], dtype=np.uint64), None)
    payload = encode_batch(1.5, [event, Removed((golden["hash"],)), Cleared()], {"r": content}, 32)
    assert msgspec.msgpack.decode(payload) == [1.5, golden["events"], 0]


@st.composite
def contents(draw) -> BlockContent:
    tokens = draw(st.lists(st.integers(0, 5), min_size=BLOCK, max_size=10 * BLOCK))
    spans, position = [], 0
    while position < len(tokens) and draw(st.booleans()):
        offset = draw(st.integers(position, len(tokens) - 1))
        length = draw(st.integers(1, len(tokens) - offset))
        spans.append(MediaSpan(offset, length, MediaId(draw(st.integers(0, 3)))))
        position = offset + length
    return BlockContent(np.array(tokens, dtype=np.int64), tuple(spans), draw(st.sampled_from(["", "salt"])))


@settings(max_examples=60, deadline=None)
@given(contents(), st.data())
def test_a_relay_makes_the_request_s_own_keys_of_the_events(content: BlockContent, data):
    num_blocks = len(content.token_ids) // BLOCK
    cut = data.draw(st.integers(0, num_blocks))
    events = [stored(content, first, end) for first, end in ((0, cut), (cut, num_blocks)) if first < end]
    payloads = [encode_batch(0.0, [event], {"r": content}, BLOCK) for event in events]
    assert held(*payloads) == {GPU_TIER: set(keys_of(content).tolist())}


def test_a_block_that_moves_to_another_medium_is_told_by_its_hash_alone():
    content = BlockContent(np.arange(8))
    keys = keys_of(content)
    moved = Stored("", 0, keys[:1], None, CPU)
    payload = encode_batch(0.0, [stored(content, 0, 2), moved], {"r": content}, BLOCK)
    (first,) = (event for event in decode_batch(payload).events if event.tier.medium == CPU)
    assert not first.covers_blocks
    assert held(payload)[Tier(medium=CPU)] == {int(keys[0])}


def test_a_block_that_was_stored_twice_is_held_until_it_was_removed_twice():
    content = BlockContent(np.arange(4))
    twice = [stored(content, 0, 1)] * 2
    key = int(keys_of(content)[0])
    once_removed = encode_batch(0.0, [*twice, Removed((key,))], {"r": content}, BLOCK)
    assert held(once_removed) == {GPU_TIER: {key}}
    assert held(encode_batch(0.0, [*twice, Removed((key, key))], {"r": content}, BLOCK)) == {}
