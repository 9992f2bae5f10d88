"""A text taken apart into words has the tokenizer's own ids."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from qwen_vocabulary import qwen_tokenizer
from tiny_files import tiny_tokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from processors import ascii_words
from processors.ascii_words import AsciiWords, as_ascii_pattern

PIECES = [
    "it's",
    "'Ll",
    " the",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\x0b",
    "\x1c",
    "1",
    "42",
    " 7",
    "fooBar",
    "--",
    "...",
    "(",
    "\0",
]
ascii_texts = st.one_of(
    st.text(st.sampled_from([c for c in map(chr, range(128)) if c != "<"]), max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
)


def made(tokenizer: Tokenizer) -> AsciiWords:
    words = AsciiWords.of(tokenizer)
    assert words is not None
    return words


QWEN = qwen_tokenizer().backend_tokenizer
TINY = tiny_tokenizer().backend_tokenizer
WORDS = {"qwen": (QWEN, made(QWEN)), "tiny": (TINY, made(TINY))}


@pytest.mark.parametrize("name", WORDS)
@settings(deadline=None, max_examples=150)
@given(text=ascii_texts)
@example(text="a\n\n  b \n 's")
def test_words_have_the_ids_of_the_whole_text(name: str, text: str) -> None:
    tokenizer, words = WORDS[name]
    for _ in range(2):  # learned, then known
        found = words.ids_of(text)
        assert found is None or found.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert found is not None


@pytest.mark.parametrize("text", ["na\u00efve", "a <|im_end|> b", "<", "\ud800"])
def test_what_could_be_more_than_words_is_left_to_the_tokenizer(text: str) -> None:
    assert WORDS["qwen"][1].ids_of(text) is None


def test_many_new_words_are_left_to_the_tokenizer_until_they_are_known() -> None:
    words = made(QWEN)
    text = " ".join(a + b for a in string.ascii_lowercase for b in "xyzabcdefg")
    answers = [words.ids_of(text) for _ in range(10)]
    assert answers[0] is None
    assert answers[-1] is not None
    assert answers[-1].tolist() == QWEN.encode(text, add_special_tokens=False).ids


def test_no_more_words_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascii_words, "KEPT_WORDS", 10)
    words = made(QWEN)
    for start in range(5):
        text = " ".join(string.ascii_letters[start * 8 : start * 8 + 8])
        found = words.ids_of(text)
        assert found is not None and found.tolist() == QWEN.encode(text, add_special_tokens=False).ids
        assert len(words._ids) <= 10


def test_a_tokenizer_that_changes_ascii_text_or_knows_no_words_is_not_taken_apart() -> None:
    for change in ("lower", "metaspace", "unigram", "stripping"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        assert AsciiWords.of(tokenizer) is not None
        if change == "lower":
            tokenizer.normalizer = normalizers.Lowercase()
        elif change == "metaspace":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        elif change == "unigram":
            tokenizer.model = models.Unigram()
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        assert AsciiWords.of(tokenizer) is None, change


@pytest.mark.parametrize("source", [r"\p{Han}+", r"(a)\s", r"[\p{L}&&[a]]+"])
def test_a_pattern_that_python_may_read_otherwise_is_not_used(source: str) -> None:
    assert as_ascii_pattern(source) is None
