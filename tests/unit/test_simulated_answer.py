"""What a simulated engine says, and where it stops."""

from __future__ import annotations

import numpy as np
import pytest

from deployments.engines.simulated_answer import Words, answer
from deployments.protocol import Sampling
from tests.unit.tiny_files import tiny_tokenizer

WORDS = Words(np.array([11, 12, 13, 14]), (" one", " two", " three", " four"))


def said(seed: int = 1, *, room: int = 1000, default: int = 128, **sampling):
    return answer(WORDS, seed, Sampling(**sampling), room=room, default_tokens=default)


def text_of(token_ids) -> str:
    return "".join(dict(zip(WORDS.token_ids.tolist(), WORDS.texts, strict=True))[i] for i in token_ids)


def test_the_same_prompt_is_answered_with_the_same_words_and_another_with_others():
    first, again, other = said(1, max_tokens=30), said(1, max_tokens=30), said(2, max_tokens=30)
    assert first.text == again.text != other.text
    assert first.text == text_of(first.token_ids.tolist())


def test_a_longer_answer_begins_like_a_shorter_one():
    assert said(max_tokens=40).text.startswith(said(max_tokens=20).text)


def test_the_parts_of_an_answer_are_the_answer():
    whole = said(max_tokens=20)
    assert whole.part(0, 3) + whole.part(3, 3) + whole.part(3, 20) == whole.text


@pytest.mark.parametrize(
    ("sampling", "length", "reason"),
    [
        ({"max_tokens": 7}, 7, "length"),
        ({"max_tokens": 7000}, 1000, "length"),
        ({}, 128, "stop"),
        ({"ignore_eos": True}, 1000, "length"),
        ({"min_tokens": 200}, 200, "stop"),
    ],
)
def test_an_answer_is_as_long_as_the_request_the_model_and_the_setting_let_it(sampling, length, reason):
    whole = said(**sampling)
    assert (len(whole), whole.finish_reason) == (length, reason)


def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it():
    whole = said(max_tokens=50)
    stop = whole.text[len(whole.part(0, 9)) - 2 : len(whole.part(0, 10)) - 1]  # across two tokens
    cut = said(max_tokens=50, stop=("never", stop))
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert whole.part(0, len(cut) - 1).find(stop) < 0 <= whole.part(0, len(cut)).find(stop)
    assert cut.part(0, len(cut) - 1) + cut.part(len(cut) - 1, len(cut)) == cut.text


def test_a_stop_string_can_be_left_in_the_text():
    cut = said(max_tokens=50, stop=(" two",), include_stop_str_in_output=True)
    assert cut.text.endswith(" two") and cut.text.count(" two") == 1


def test_a_stop_string_is_not_looked_for_before_the_tokens_that_must_come():
    first = said(max_tokens=50, stop=(" two",))
    later = said(max_tokens=50, stop=(" two",), min_tokens=len(first))
    assert len(later) > len(first)
    assert later.text.count(" two") == 1


def test_a_stop_token_is_counted_and_not_shown():
    cut = said(max_tokens=50, stop_token_ids=(12,))
    assert cut.token_ids.tolist().index(12) == len(cut) - 1
    assert cut.text == text_of(cut.token_ids[:-1].tolist())
    assert cut.stop_reason == 12


def test_the_words_of_a_vocabulary_read_back_as_their_tokens(tiny_words_tokenizer):
    words = Words.of(tiny_words_tokenizer)
    whole = answer(words, 5, Sampling(max_tokens=60), room=100, default_tokens=1)
    assert tiny_words_tokenizer.encode(whole.text, add_special_tokens=False) == whole.token_ids.tolist()


def test_a_vocabulary_of_letters_is_spoken_letter_by_letter():
    words = Words.of(tiny_tokenizer())
    assert len(words.texts) == 52 and all(text.isalpha() for text in words.texts)


@pytest.fixture(scope="module")
def tiny_words_tokenizer(tmp_path_factory):
    from transformers import PreTrainedTokenizerFast

    from app.tiny_tokenizer import write_tokenizer

    folder = tmp_path_factory.mktemp("words")
    write_tokenizer(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)
