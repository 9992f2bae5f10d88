"""SGLang's pad values, against those of the installed release and the older releases' formula."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.events import BlockStored
from router.keys import block_keys
from router.pads import pad_values, padded_tokens
from router.residency import Residency
from sightline_types import KeyScheme, KeySpec, MediaId, MediaSpan, Tier, TokenView

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "sglang_pads.json").read_text())["vectors"]
CAT, DOG = MediaId(0xCA7), MediaId(0xD06)
PLACEHOLDER = 7
SCHEMES = (KeyScheme.SGLANG_SINGLE, KeyScheme.SGLANG_WIDE)


def view_of(length: int, *spans: tuple[int, int, MediaId]) -> TokenView:
    tokens = np.arange(100, 100 + length, dtype=np.int64)
    for offset, count, _ in spans:
        tokens[offset : offset + count] = PLACEHOLDER
    return TokenView(tokens, tuple(MediaSpan(*span) for span in spans), length)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["identity"])
def test_pad_values_are_those_of_the_release(vector):
    media_id = MediaId.from_hex(vector["identity"])
    assert list(pad_values(KeyScheme.SGLANG_WIDE, media_id)) == vector["wide"]
    assert pad_values(KeyScheme.SGLANG_SINGLE, media_id) == (vector["single"],)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["identity"])
def test_a_run_of_placeholders_takes_the_values_in_turn(vector):
    view = view_of(9, (2, 6, MediaId.from_hex(vector["identity"])))
    wide = padded_tokens(view, KeyScheme.SGLANG_WIDE).tolist()
    assert wide == [100, 101, *vector["wide_run_of_6"], 108]
    single = padded_tokens(view, KeyScheme.SGLANG_SINGLE).tolist()
    assert single == [100, 101, *[vector["single"]] * 6, 108]


def test_each_item_begins_with_its_first_value():
    padded = padded_tokens(view_of(12, (0, 3, CAT), (5, 3, DOG)), KeyScheme.SGLANG_WIDE).tolist()
    assert padded[:3] == list(pad_values(KeyScheme.SGLANG_WIDE, CAT)[:3])
    assert padded[5:8] == list(pad_values(KeyScheme.SGLANG_WIDE, DOG)[:3])


def test_padding_leaves_the_view_as_it_is():
    view = view_of(8, (2, 4, CAT))
    padded_tokens(view, KeyScheme.SGLANG_WIDE)
    assert view.token_ids[2:6].tolist() == [PLACEHOLDER] * 4


def test_pictures_that_an_older_release_confuses_are_one_to_the_router_too():
    """2^30 values: two of 20,000 pictures share one in about every fifth such set. The engine would serve one
    for the other, and a credit for it is what it will find; the wide pads keep them apart."""
    twin = MediaId(CAT.value + 2**30)
    views = [view_of(32, (2, 20, media_id)) for media_id in (CAT, twin)]
    keys = {scheme: [block_keys(view, KeySpec(scheme, 4)).keys for view in views] for scheme in SCHEMES}
    assert keys[KeyScheme.SGLANG_SINGLE][0] == keys[KeyScheme.SGLANG_SINGLE][1]
    assert keys[KeyScheme.SGLANG_WIDE][0] != keys[KeyScheme.SGLANG_WIDE][1]


def test_twenty_thousand_pictures_share_no_wide_pad():
    pads = [
        pad_values(KeyScheme.SGLANG_WIDE, MediaId(number * 0x9E3779B97F4A7C15 % 2**64))
        for number in range(20_000)
    ]
    assert len({value for values in pads for value in values}) == 4 * len(pads)


def test_vllm_has_no_pads():
    view = view_of(8, (2, 4, CAT))
    assert pad_values(KeyScheme.VLLM, CAT) == ()
    assert padded_tokens(view, KeyScheme.VLLM) is view.token_ids


@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_a_request_and_the_engines_events_have_the_same_keys(scheme, data):
    """The events as SGLang publishes them: no extras, the pads among the tokens."""
    size = data.draw(st.sampled_from([1, 4, 16]))
    length = data.draw(st.integers(size, 80))
    offset = data.draw(st.integers(0, length - 1))
    count = data.draw(st.integers(1, length - offset))
    view = view_of(length, (offset, count, data.draw(st.sampled_from([CAT, DOG]))))
    spec = KeySpec(scheme, size)
    num_blocks = length // size
    tokens = padded_tokens(view, scheme)[: num_blocks * size]
    held = Residency(spec, counts=False)
    held.apply(BlockStored(Tier(), tuple(range(1, num_blocks + 1)), None, tokens, size))
    (delta,) = held.table()
    keyed = block_keys(view, spec)
    assert set(np.frombuffer(delta.stored, dtype="<u8")) == set(keyed.key_array())
    first, last = offset // size, (offset + count - 1) // size
    assert keyed.media_block_array().tolist() == list(range(first, min(last + 1, num_blocks)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_identity_changes_the_keys_from_its_block_on(scheme):
    spec = KeySpec(scheme, 4)
    cat = block_keys(view_of(16, (6, 4, CAT)), spec).key_array()
    dog = block_keys(view_of(16, (6, 4, DOG)), spec).key_array()
    assert (cat == dog).tolist() == [True, False, False, False]


def test_the_releases_do_not_share_keys():
    views = [block_keys(view_of(8), KeySpec(scheme, 4)).keys for scheme in KeyScheme]
    assert len(set(views)) == len(KeyScheme)
