"""Cached part by part, a prompt has the ids that the whole text at once would have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_vocabulary import PATTERN, PLAIN, SPECIAL, qwen_tokenizer, ranks
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from processors.encoder import PromptEncoder
from processors.special_tokens import SpecialTokens
from processors.token_cache import Ids, TokenCache

#: What could go wrong at a cut: spaces, halves of tokens, accents that combine, other scripts.
FRAGMENTS = [
    *SPECIAL, *PLAIN, "<|im_end|", "|>", "<", "<|", "im_start|>", " ", "  ", "\n", "\n\n", "\t", "a", " a",
    "A quick brown fox", "'s", "12345", "\u0301", "e\u0301", "\u00e9", "\u4f60\u597d", "\U0001f642", "\u200d",
    "\ufb01", "\u2028", "\x1c", "don't", "<think>", "user\n", "  x = 1\n",
]  # fmt: skip

texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=14).map("".join)


def is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(char) < 0xE000 for char in text)


def encoder(tokenizer: PreTrainedTokenizerFast, max_bytes: int = 1 << 20) -> PromptEncoder:
    return PromptEncoder(tokenizer, SpecialTokens.of(tokenizer), TokenCache(max_bytes))


def whole(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_the_vocabulary_is_qwens_own() -> None:
    import tiktoken

    own = tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=ranks(), special_tokens={})
    text = (
        "Hello, wie geht's? \u4f60\u597d 1234 \n\n  x  \t caf\u00e9 \u2014 \U0001f642 def f(x):\n    return x"
    )
    assert whole(qwen_tokenizer(), text) == own.encode_ordinary(text)
    assert qwen_tokenizer().convert_tokens_to_ids("<|image_pad|>") == 151655


@settings(deadline=None, max_examples=300)
@given(st.lists(texts.filter(is_unicode), min_size=1, max_size=4))
def test_ids_are_those_of_the_whole_text_over_qwens_vocabulary(turns: list[str]) -> None:
    cached = encoder(qwen_tokenizer(), max_bytes=2000)
    for number in range(len(turns)):
        text = "".join(turns[: number + 1])
        assert list(cached.encode(text).ids) == whole(qwen_tokenizer(), text)


def odd_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Small tokenizers whose rules reach beyond a token, or depend on where a text begins."""
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz<>|/_ ", "\u2581a", "ab"]
    vocabulary = {letter: i for i, letter in enumerate(["<unk>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("\u2581", "a"), ("a", "b")], unk_token="<unk>"))
    strip = {"lstrip": "left" in kind, "rstrip": "right" in kind}
    if "first" in kind:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    if "prepend" in kind:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_tokens([AddedToken("<s>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<pic>", special=True, normalized=False, **strip)])
    tokenizer.add_tokens([AddedToken("<pic><s>", special=False, normalized=False)])
    tokenizer.add_tokens([AddedToken("<word>", special=False, normalized="lower" in kind)])
    tokenizer.add_tokens([AddedToken("alone", normalized=False, single_word="single" in kind)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


KINDS = ("plain", "left", "right", "left right", "first", "prepend", "single", "lower prepend", "first right")
odd_texts = st.lists(
    st.sampled_from(
        ["<s>", "<pic>", "<word>", "alone", " ", "  ", "\n", "a", "ab", "<", "<pi", "c>", "\x1c"]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_whole_text_over_odd_tokenizers(kind: str) -> None:
    tokenizer = odd_tokenizer(kind)
    cached = encoder(tokenizer)

    @settings(deadline=None, max_examples=120)
    @given(odd_texts)
    def check(text: str) -> None:
        assert list(cached.encode(text).ids) == whole(tokenizer, text)

    check()


def test_a_token_that_must_stand_alone_leaves_no_cut() -> None:
    specials = SpecialTokens.of(odd_tokenizer("single"))
    assert specials.cuts("a<s>b<pic>") == []


def test_a_token_that_takes_space_from_its_left_is_no_cut() -> None:
    assert SpecialTokens.of(odd_tokenizer("left")).cuts("a <pic>b<s>") == [8]


@settings(deadline=None, max_examples=100)
@given(texts.filter(is_unicode), st.data())
def test_tokens_before_a_position_are_counted(text: str, data: st.DataObject) -> None:
    tokenizer = qwen_tokenizer()
    position = data.draw(st.integers(0, len(text)))
    encoded = encoder(tokenizer).encode(text, position)
    if encoded.first and text.isascii():  # a character of several tokens has no single first one
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        assert all(end <= position for _, end in offsets[: encoded.first])
        assert all(end > position for _, end in offsets[encoded.first :])


# A conversation that grows


def turn(number: int) -> str:
    question = f"<|im_start|>user\nWhat is number {number}?<|im_end|>\n"
    return question + f"<|im_start|>assistant\nIt is {number}.<|im_end|>\n"


def test_a_turn_costs_only_its_new_part() -> None:
    tokenizer = qwen_tokenizer()
    cache = TokenCache(1 << 20)
    cached = PromptEncoder(tokenizer, SpecialTokens.of(tokenizer), cache)
    history = ""
    for number in range(10):
        before = cache.stats
        history += turn(number)
        cached.encode(history)
        new = cache.stats.missed_tokens - before.missed_tokens
        assert 0 < new <= len(whole(tokenizer, turn(number)))
    assert cache.stats.hit_tokens > cache.stats.missed_tokens


# The cache alone


def ids_of(parts: list[str]) -> list[Ids]:
    return [np.arange(len(part), dtype=np.int32) for part in parts]


def test_only_what_is_not_held_is_encoded_and_each_part_once() -> None:
    cache, asked = TokenCache(10_000), []

    def encode(parts: list[str]) -> list[Ids]:
        asked.append(parts)
        return ids_of(parts)

    cache.ids_of(["a", "bb", "a"], encode)
    assert [len(ids) for ids in cache.ids_of(["bb", "ccc"], encode)] == [2, 3]
    assert asked == [["a", "bb"], ["ccc"]]


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 1500), st.lists(st.lists(st.text("ab", max_size=60), max_size=5), max_size=12))
def test_the_cache_stays_within_its_bytes(limit: int, requests: list[list[str]]) -> None:
    cache = TokenCache(limit)
    for parts in requests:
        result = cache.ids_of(parts, ids_of)
        assert [len(ids) for ids in result] == [len(part) for part in parts]
        cache.check_integrity()


def test_the_least_recently_used_part_goes_first() -> None:
    cache = TokenCache(2 * (250 + 50 + 4))
    encode: Callable[[list[str]], list[Ids]] = ids_of
    cache.ids_of(["a"], encode)
    cache.ids_of(["b"], encode)
    cache.ids_of(["a"], encode)
    cache.ids_of(["c"], encode)
    hits = cache.stats.hits
    cache.ids_of(["a"], encode)
    assert cache.stats.hits == hits + 1
    cache.ids_of(["b"], encode)
    assert cache.stats.hits == hits + 1
