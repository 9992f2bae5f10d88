"""Block keys, against the vectors and against a second implementation that packs every number by itself."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router import compiled_keys, plain_keys
from router.keys import block_keys, chain_key, chain_keys, root_key
from sightline_types import KeyScheme, KeySpec, MediaId, MediaSpan, TokenView

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "block_keys.json").read_text())
SPEC = KeySpec(KeyScheme.VLLM, 4)
CAT, DOG = MediaId(0xCA7), MediaId(0xD06)


def view_of(length: int, *spans: tuple[int, int, MediaId], exact_until: int | None = None) -> TokenView:
    tokens = np.arange(100, 100 + length, dtype=np.int64)
    for offset, count, _ in spans:
        tokens[offset : offset + count] = 7
    return TokenView(tokens, tuple(MediaSpan(*span) for span in spans), exact_until or length)


def keys_of(view: TokenView, spec: KeySpec = SPEC, **roots: str) -> list[int]:
    return block_keys(view, spec, **roots).key_array().tolist()


def naive_keys(
    tokens: list[int],
    spans: list[tuple[int, int, int]],
    block_size: int,
    exact_until: int,
    salt: str,
    lora: str,
) -> list[int]:
    """The formula in DESIGN.md, number by number."""

    def digest(data: bytes) -> int:
        return xxhash.xxh3_64_intdigest(data, 0) or 1

    root = b""
    for text in ("sightline/block-key/1", "vllm", salt, lora):
        root += struct.pack("<Q", len(text.encode())) + text.encode()
    parent, keys = digest(root), []
    for start in range(0, min(exact_until, len(tokens)) - block_size + 1, block_size):
        data = struct.pack("<Q", parent)
        for token in tokens[start : start + block_size]:
            data += struct.pack("<q", token)
        for offset, length, media_id in spans:
            if offset < start + block_size and offset + length > start:
                data += struct.pack("<Qq", media_id, offset - start)
        parent = digest(data)
        keys.append(parent)
    return keys


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_keys_equal_the_vectors_bit_for_bit(vector):
    spans = [(offset, length, int(media, 16)) for offset, length, media in vector["spans"]]
    arguments = (vector["block_size"], vector["exact_until"], vector["salt"], vector["lora"])
    view = TokenView(
        np.array(vector["tokens"], dtype=np.int64),
        tuple(MediaSpan(offset, length, MediaId(media)) for offset, length, media in spans),
        vector["exact_until"],
    )
    spec = KeySpec(KeyScheme.VLLM, vector["block_size"])
    expected = [int(key, 16) for key in vector["keys"]]
    assert keys_of(view, spec, salt=vector["salt"], lora=vector["lora"]) == expected
    assert naive_keys(vector["tokens"], spans, *arguments) == expected


def test_the_vectors_hold_every_case_that_matters():
    assert {"text", "negative_offset", "two_spans_in_a_block", "salt", "lora", "pad_values"} <= {
        vector["name"] for vector in VECTORS["vectors"]
    }


@st.composite
def views(draw):
    length = draw(st.integers(0, 40))
    tokens = draw(st.lists(st.integers(0, 2**62), min_size=length, max_size=length))
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
    spans = tuple(
        MediaSpan(start, end - start, MediaId(draw(st.integers(0, 2**64 - 1))))
        for start, end in zip(cuts[::2], cuts[1::2], strict=False)
    )
    return TokenView(np.array(tokens, dtype=np.int64), spans, draw(st.integers(0, length)))


@settings(deadline=None, max_examples=150)
@given(view=views(), block_size=st.integers(1, 9), salt=st.text(max_size=3), lora=st.sampled_from(["", "a"]))
def test_both_implementations_agree_on_any_view(view, block_size, salt, lora):
    spans = [(span.offset, span.length, span.media_id.value) for span in view.spans]
    naive = naive_keys(view.token_ids.tolist(), spans, block_size, view.exact_until, salt, lora)
    assert keys_of(view, KeySpec(KeyScheme.VLLM, block_size), salt=salt, lora=lora) == naive


@settings(deadline=None, max_examples=100)
@given(view=views(), block_size=st.integers(1, 9))
def test_chaining_block_by_block_gives_the_keys_of_the_request(view, block_size):
    chained, parent = [], root_key(KeyScheme.VLLM)
    for start in range(0, view.exact_until - block_size + 1, block_size):
        end = start + block_size
        touching = [s for s in view.spans if s.offset < end and s.end > start]
        parent = chain_key(
            parent, view.token_ids[start:end], [(s.media_id, s.offset - start) for s in touching]
        )
        chained.append(parent)
    assert keys_of(view, KeySpec(KeyScheme.VLLM, block_size)) == chained


def test_chain_key_does_not_mind_how_the_tokens_lie_in_memory():
    tokens = np.arange(8, dtype=np.int64)
    parent = root_key(KeyScheme.VLLM)
    assert chain_key(parent, tokens[::2], []) == chain_key(parent, np.array([0, 2, 4, 6], dtype=np.int32), [])


def test_two_swapped_images_have_other_keys():
    one_way = keys_of(view_of(16, (4, 4, CAT), (8, 4, DOG)))
    other_way = keys_of(view_of(16, (4, 4, DOG), (8, 4, CAT)))
    assert one_way[0] == other_way[0]
    assert all(a != b for a, b in zip(one_way[1:], other_way[1:], strict=True))


def test_two_images_swapped_within_one_block_have_other_keys():
    one_way, other_way = view_of(8, (4, 2, CAT), (6, 2, DOG)), view_of(8, (4, 2, DOG), (6, 2, CAT))
    assert keys_of(one_way)[1] != keys_of(other_way)[1]


def test_an_image_one_token_later_has_other_keys_though_all_tokens_are_equal():
    tokens = np.full(12, 7, dtype=np.int64)
    early, late = (TokenView(tokens, (MediaSpan(at, 4, CAT),), 12) for at in (4, 5))
    assert keys_of(early)[0] == keys_of(late)[0]
    assert keys_of(early)[1] != keys_of(late)[1]


def test_an_image_that_began_in_an_earlier_block_enters_with_a_negative_offset():
    view = view_of(12, (2, 8, CAT))
    first, second, third = keys_of(view)
    assert first == chain_key(root_key(KeyScheme.VLLM), view.token_ids[:4], [(CAT, 2)])
    assert second == chain_key(first, view.token_ids[4:8], [(CAT, -2)])
    assert third == chain_key(second, view.token_ids[8:], [(CAT, -6)])


def test_two_images_that_touch_one_block_both_enter_in_order():
    view = view_of(8, (1, 5, CAT), (6, 2, DOG))
    first, second = keys_of(view)
    assert second == chain_key(first, view.token_ids[4:], [(CAT, -3), (DOG, 2)])


@pytest.mark.parametrize("roots", [{"salt": "s"}, {"lora": "l"}, {"salt": "s", "lora": "l"}])
def test_salt_and_lora_change_every_key(roots):
    view = view_of(16, (4, 4, CAT))
    assert not set(keys_of(view)) & set(keys_of(view, **roots))


def test_salt_and_lora_are_not_confused_with_each_other():
    roots = [("ab", ""), ("a", "b"), ("", "ab"), ("b", "a")]
    assert len({root_key(KeyScheme.VLLM, salt, lora) for salt, lora in roots}) == len(roots)


def test_a_salt_with_a_lone_surrogate_is_hashed_like_any_other():
    assert root_key(KeyScheme.VLLM, "\ud800") != root_key(KeyScheme.VLLM, "\ud801")


def test_nothing_beyond_the_exact_part_has_a_key():
    keyed = block_keys(view_of(16, (2, 3, CAT), (9, 4, DOG), exact_until=11), SPEC)
    assert keyed.key_array().tolist() == keys_of(view_of(16, (2, 3, CAT), (9, 4, DOG)))[:2]
    assert keyed.media_block_array().tolist() == [0, 1]
    assert keyed.media_ends == ((5, 3),)


def test_a_partial_last_block_has_no_key():
    assert len(keys_of(view_of(15))) == 3
    assert keys_of(view_of(3)) == []


def test_media_blocks_are_those_that_a_span_touches():
    keyed = block_keys(view_of(24, (3, 2, CAT), (16, 4, DOG)), SPEC)
    assert keyed.media_block_array().tolist() == [0, 1, 4]
    assert keyed.media_ends == ((5, 2), (20, 4))


@pytest.mark.parametrize("changed", range(16))
def test_a_changed_token_changes_the_keys_from_its_block_on_and_none_before(changed):
    view = view_of(16)
    tokens = view.token_ids.copy()
    tokens[changed] += 1
    before, after = keys_of(view), keys_of(TokenView(tokens, (), 16))
    assert [a == b for a, b in zip(before, after, strict=True)] == [i < changed // 4 for i in range(4)]


def test_another_identity_changes_the_keys_from_its_first_block_on_and_none_before():
    cat, dog = keys_of(view_of(16, (6, 4, CAT))), keys_of(view_of(16, (6, 4, DOG)))
    assert [a == b for a, b in zip(cat, dog, strict=True)] == [True, False, False, False]


def test_an_image_one_token_longer_changes_the_keys_from_where_they_part():
    short, long = keys_of(view_of(20, (6, 6, CAT))), keys_of(view_of(20, (6, 7, CAT)))
    assert [a == b for a, b in zip(short, long, strict=True)] == [True, True, True, False, False]


def test_a_digest_of_zero_becomes_one(monkeypatch):
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda data: 0)
    assert root_key(KeyScheme.VLLM) == 1
    assert chain_key(root_key(KeyScheme.VLLM), np.arange(4), []) == 1


@settings(deadline=None, max_examples=80)
@given(view=views(), size=st.integers(1, 9), root=st.integers(1, 2**64 - 1))
def test_compiled_and_plain_chains_are_one(view, size, root):
    num_blocks = len(view) // size
    plain, compiled = (
        module.chain_view(root, view.token_ids, size, num_blocks, view.spans)
        for module in (plain_keys, compiled_keys)
    )
    assert plain[0].tolist() == compiled[0].tolist()
    assert plain[1].tolist() == compiled[1].tolist()


@settings(deadline=None, max_examples=80)
@given(num_words=st.integers(2, 375), seed=st.integers(0, 2**32))
def test_the_compiled_hash_is_xxh3_at_every_length(num_words, seed):
    words = np.random.default_rng(seed).integers(-(2**63), 2**63, num_words, dtype=np.int64)
    parent, tokens = int(words[0]) % 2**64, words[1:]
    (key,) = compiled_keys.chain_blocks(parent, tokens, num_words - 1, [()])
    assert int(key) == xxhash.xxh3_64_intdigest(words.astype("<i8").tobytes())


@pytest.mark.parametrize("num_words", [2, 3, 4, 5, 8, 9, 12, 13, 16, 17, 30, 31, 128, 129, 130, 257, 375])
def test_the_compiled_hash_is_xxh3_at_the_borders_of_its_length_classes(num_words):
    tokens = np.arange(1, num_words, dtype=np.int64) << 40
    (key,) = compiled_keys.chain_blocks(7, tokens, num_words - 1, [()])
    assert int(key) == xxhash.xxh3_64_intdigest((7).to_bytes(8, "little") + tokens.tobytes())


@settings(deadline=None, max_examples=50)
@given(
    extras=st.lists(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**40), 2**40)), max_size=3)),
    size=st.integers(1, 5),
)
def test_event_blocks_chained_at_once_are_those_chained_one_by_one(extras, size):
    tokens = np.arange(len(extras) * size, dtype=np.int64).reshape(len(extras), size)
    named = [[(MediaId(media), offset) for media, offset in own] for own in extras]
    parent, one_by_one = root_key(KeyScheme.VLLM), []
    for block, own in zip(tokens, named, strict=True):
        parent = chain_key(parent, block, own)
        one_by_one.append(parent)
    assert chain_keys(root_key(KeyScheme.VLLM), tokens, named).tolist() == one_by_one


def test_event_blocks_without_media_need_no_extras():
    tokens = np.arange(8).reshape(2, 4)
    root = root_key(KeyScheme.VLLM)
    assert chain_keys(root, tokens).tolist() == keys_of(TokenView(tokens.reshape(-1), (), 8))


@pytest.mark.parametrize("extras", [[[]], [[]] * 3])
def test_event_blocks_and_extras_of_other_numbers_are_refused(extras):
    with pytest.raises(ValueError, match=r"\(2, 4\) and \d"):
        chain_keys(root_key(KeyScheme.VLLM), np.arange(8).reshape(2, 4), extras)


def test_a_block_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="block_size=0"):
        block_keys(view_of(8), KeySpec(KeyScheme.VLLM, 0))
