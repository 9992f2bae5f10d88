"""The chat template and the tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_files import IMAGE_PAD, TEXT_TEMPLATE, tiny_tokenizer

from processors import RequestError
from processors.messages import Conversation, parse_messages
from processors.template import ChatTemplate


def conversation(*messages: dict[str, Any]) -> Conversation:
    return parse_messages(list(messages), enable_multimodal=True, max_items=9)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


IMAGE = {"type": "image_url", "image_url": "data:,a"}
PARTS = user([IMAGE, {"type": "text", "text": "hi"}])


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(tiny_tokenizer())


def test_an_image_becomes_one_placeholder(template: ChatTemplate) -> None:
    text = template.render(conversation(PARTS))
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>hi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.encode(text).count(IMAGE_PAD) == 1


def test_the_generation_prompt_can_be_left_out(template: ChatTemplate) -> None:
    assert template.render(conversation(user("hi")), add_generation_prompt=False).endswith("<|im_end|>\n")


def test_tools_and_template_arguments_reach_the_template(template: ChatTemplate) -> None:
    text = template.render(
        conversation(user("hi")), tools=[{"name": "look"}], chat_template_kwargs={"shout": True}
    )
    assert '"look"' in text and text.endswith("LOUD")


def test_tool_calls_reach_the_template(template: ChatTemplate) -> None:
    call = {"function": {"name": "look", "arguments": '{"at": 1}'}}
    text = template.render(conversation(user("hi"), {"role": "assistant", "tool_calls": [call]}))
    assert '<tool_call>look{"at": 1}' in text


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "messages", "add_generation_prompt"])
def test_template_arguments_cannot_steer_the_rendering_itself(template: ChatTemplate, name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        template.render(conversation(user("hi")), chat_template_kwargs={name: 1})
    assert caught.value.param == "chat_template_kwargs"


def test_what_the_template_says_against_the_messages_is_the_errors_text(template: ChatTemplate) -> None:
    with pytest.raises(RequestError, match="no such answer") as caught:
        template.render(conversation(user("hi"), {"role": "assistant", "content": "forbidden"}))
    assert (caught.value.status, caught.value.code) == (400, "chat_template_error")


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(RequestError, match=r"chat_template\.jinja"):
        ChatTemplate(tiny_tokenizer(None)).render(conversation(user("hi")))


def test_no_special_tokens_are_added_to_those_of_the_template(template: ChatTemplate) -> None:
    assert template.encode("<|im_start|>a") == [1, template.encode("a")[0]]


def test_the_end_of_the_first_user_turn_is_found(template: ChatTemplate) -> None:
    first = [{"role": "system", "content": "be brief"}, user("hello")]
    chat = template.tokenize(conversation(*first, {"role": "assistant", "content": "hi"}, user("and?")))
    turn = template.encode(template.render(conversation(*first), add_generation_prompt=False))
    assert chat.first_turn_tokens == len(turn)
    assert list(chat.token_ids[: len(turn)]) == turn


def test_the_first_turn_is_the_whole_prompt_when_nothing_follows(template: ChatTemplate) -> None:
    chat = template.tokenize(conversation(user("hello")), add_generation_prompt=False)
    assert chat.first_turn_tokens == len(chat.token_ids)


def test_without_a_user_turn_there_is_no_first_one(template: ChatTemplate) -> None:
    assert template.tokenize(conversation({"role": "system", "content": "x"})).first_turn_tokens == 0


def test_a_developer_is_a_system_where_the_template_knows_no_developer(template: ChatTemplate) -> None:
    text = template.render(conversation({"role": "developer", "content": "x"}, user("hi")))
    assert text.startswith("<|im_start|>system\n")


def test_a_template_that_names_developers_keeps_them() -> None:
    knowing = ChatTemplate(tiny_tokenizer("{# 'developer' #}" + TEXT_TEMPLATE))
    assert "developer" in knowing.render(conversation({"role": "developer", "content": "x"}))


def test_a_text_template_gets_parts_joined_by_line() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatTemplate(tiny_tokenizer(TEXT_TEMPLATE)).render(conversation(user(parts))) == (
        "<|im_start|>user\na\nb<|im_end|>\n"
    )


def test_a_text_template_refuses_media() -> None:
    with pytest.raises(RequestError, match="text only"):
        ChatTemplate(tiny_tokenizer(TEXT_TEMPLATE)).render(conversation(PARTS))


def test_text_that_is_not_unicode_is_refused(template: ChatTemplate) -> None:
    with pytest.raises(RequestError, match="Unicode"):
        template.tokenize(conversation(user("\ud800")))
