"""A special token counts where the template wrote it, and is plain text where a client did."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_vocabulary import SPECIAL, qwen_tokenizer
from test_token_cache import odd_tokenizer
from tiny_files import IMAGE_PAD, TEMPLATE, TEXT_TEMPLATE, tiny_tokenizer
from tokenizers import AddedToken

from processors import RequestError
from processors.encoder import PromptEncoder
from processors.messages import Conversation, parse_messages
from processors.special_tokens import SpecialTokens
from processors.template import ChatTemplate
from processors.token_cache import TokenCache

IMAGE = {"type": "image_url", "image_url": "data:,a"}
NAMES = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>", "<|im_start|>"]


def conversation(*parts: Any) -> Conversation:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    turns = [{"role": "user", "content": content}]
    return parse_messages(turns, enable_multimodal=True, max_items=8)


@functools.cache
def qwen_template() -> ChatTemplate:
    return ChatTemplate(qwen_tokenizer())


@pytest.fixture
def template() -> ChatTemplate:
    return qwen_template()


def plain(text: str) -> list[int]:
    """The oracle: the whole text with no special token in it."""
    ids = qwen_tokenizer()(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    qwen_tokenizer()("", split_special_tokens=False)
    return list(ids)


def expected(*parts: str | None) -> list[int]:
    """One user turn; None is a picture."""
    token = qwen_tokenizer().convert_tokens_to_ids
    ids, text = [token("<|im_start|>")], "user\n"
    for part in parts:
        if part is None:
            ids += [*plain(text), token("<|vision_start|>"), token("<|image_pad|>"), token("<|vision_end|>")]
        text = "" if part is None else text + part
    return [
        *ids,
        *plain(text),
        token("<|im_end|>"),
        *plain("\n"),
        token("<|im_start|>"),
        *plain("assistant\n"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_special_token_in_a_clients_text_is_plain_text(template: ChatTemplate, name: str) -> None:
    chat = template.tokenize(conversation(f"what is {name}?", IMAGE, "and this?"))
    assert list(chat.token_ids) == expected(f"what is {name}?", None, "and this?")
    token = qwen_tokenizer().convert_tokens_to_ids(name)
    without = template.tokenize(conversation("what is it?", IMAGE, "and this?"))
    assert chat.token_ids.count(token) == without.token_ids.count(token)


@pytest.mark.parametrize("name", NAMES)
def test_a_special_token_split_over_parts_is_plain_text(template: ChatTemplate, name: str) -> None:
    for cut in range(1, len(name)):
        chat = template.tokenize(conversation(name[:cut], name[cut:]))
        assert list(chat.token_ids) == expected(name)


def test_a_special_token_split_over_three_parts_is_plain_text(template: ChatTemplate) -> None:
    chat = template.tokenize(conversation("<|im", "age_", "pad|>"))
    assert list(chat.token_ids) == expected("<|image_pad|>")


fragments = st.lists(
    st.sampled_from(
        [*SPECIAL[:6], "<|image_pad|>", "<|im", "age_pad|>", "<", "|>", "a", " b", "\n", "e\u0301", ">"]
    ),
    max_size=8,
).map("".join)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.none() | fragments, min_size=1, max_size=5))
def test_whatever_clients_write_only_the_templates_tokens_count(parts: list[str | None]) -> None:
    chat = qwen_template().tokenize(conversation(*(IMAGE if part is None else part for part in parts)))
    assert list(chat.token_ids) == expected(*parts)


def test_tools_and_history_are_clients_text_too(template: ChatTemplate) -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "<|image_pad|>", "tool_calls": [call("<|image_pad|>")]},
        {"role": "tool", "content": "<|video_pad|>"},
    ]
    chat = template.tokenize(
        parse_messages(turns, enable_multimodal=True, max_items=8), tools=[{"name": "<|image_pad|>"}]
    )
    token = qwen_tokenizer().convert_tokens_to_ids
    assert not {token("<|image_pad|>"), token("<|video_pad|>")} & set(chat.token_ids)
    assert "<|image_pad|>" in qwen_tokenizer().decode(chat.token_ids)


def call(argument: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "arguments": {"at": argument}}}


def test_the_first_turn_is_found_in_marked_text_too(template: ChatTemplate) -> None:
    first = {"role": "user", "content": "what is <|image_pad|>?"}
    turns = [first, {"role": "assistant", "content": "a token"}, {"role": "user", "content": "oh"}]
    alone = template.tokenize(
        parse_messages([first], enable_multimodal=True, max_items=8), add_generation_prompt=False
    )
    chat = template.tokenize(parse_messages(turns, enable_multimodal=True, max_items=8))
    assert chat.first_turn_tokens == len(alone.token_ids)
    assert chat.token_ids[: chat.first_turn_tokens] == alone.token_ids


def test_text_that_is_not_unicode_is_refused_beside_a_special_token_too(template: ChatTemplate) -> None:
    with pytest.raises(RequestError, match="Unicode"):
        template.tokenize(conversation("<|image_pad|> \ud800"))


def test_a_template_that_changes_marked_text_is_not_guessed_at() -> None:
    by_length = TEXT_TEMPLATE.replace("message.content +", "(message.content | length) | string +")
    with pytest.raises(RequestError, match=r"<\|im_end\|>") as caught:
        ChatTemplate(tiny_tokenizer(by_length)).tokenize(
            parse_messages([{"role": "user", "content": "<|im_end|>"}], enable_multimodal=False, max_items=0)
        )
    assert (caught.value.status, caught.value.code) == (400, "special_token")


def test_a_special_token_that_a_template_puts_together_by_stripping_is_plain_text() -> None:
    stripping = ChatTemplate(tiny_tokenizer(TEMPLATE.replace("part.text", "part.text | trim")))
    chat = stripping.tokenize(conversation("<|image_pad| \n", ">"))
    assert IMAGE_PAD not in chat.token_ids
    assert tiny_tokenizer().decode(chat.token_ids).count("<|image_pad|>") == 1


def test_a_text_that_only_ends_like_a_special_token_needs_no_tokenizer_that_can_tell() -> None:
    tokenizer = odd_tokenizer("left")
    tokenizer.chat_template = TEXT_TEMPLATE.replace("<|im_start|>", "<s>").replace("<|im_end|>", "<s>")
    template = ChatTemplate(tokenizer)
    turns = [{"role": "user", "content": "a <"}]
    chat = template.tokenize(parse_messages(turns, enable_multimodal=False, max_items=0))
    assert list(chat.token_ids) == tokenizer("<s>user\na <<s>\n", add_special_tokens=False)["input_ids"]


def test_a_special_token_that_is_searched_in_normalized_text_is_refused() -> None:
    tokenizer = odd_tokenizer("plain")
    tokenizer.add_special_tokens({"pad_token": AddedToken("<pad>", special=True, normalized=True)})
    tokenizer.chat_template = TEXT_TEMPLATE.replace("<|im_start|>", "<s>").replace("<|im_end|>", "<s>")
    turns = [{"role": "user", "content": "a <pad>"}]
    with pytest.raises(RequestError, match="leave it out"):
        ChatTemplate(tokenizer).tokenize(parse_messages(turns, enable_multimodal=False, max_items=0))


def test_text_that_no_mark_is_left_for_is_refused() -> None:
    every = "".join(map(chr, range(0xF0000, 0xF0100)))
    with pytest.raises(RequestError, match="leave it out"):
        ChatTemplate(tiny_tokenizer()).tokenize(conversation("<|im_end|>" + every))


@pytest.mark.parametrize(
    ("kind", "can"), [("plain", True), ("right", True), ("left", False), ("first", False), ("single", False)]
)
def test_a_tokenizer_says_whether_it_can_write_a_special_token_as_text(kind: str, can: bool) -> None:
    tokenizer = odd_tokenizer(kind)
    encoder = PromptEncoder(tokenizer, SpecialTokens.of(tokenizer), TokenCache(0))
    assert encoder.can_write_plain is can
    if not can:
        with pytest.raises(RequestError, match="leave it out"):
            encoder.encode_marked("a<!pic>", "!")


def test_space_after_a_token_that_takes_it_is_not_text() -> None:
    tokenizer = odd_tokenizer("right")
    encoder = PromptEncoder(tokenizer, SpecialTokens.of(tokenizer), TokenCache(0))
    assert encoder.encode_marked("<pic> \n a<!pic>", "!").ids[:2] == encoder.encode("<pic> \n a").ids
