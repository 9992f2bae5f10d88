"""OpenAI's messages, checked."""

from __future__ import annotations

from typing import Any

import pytest

from processors import RequestError
from processors.messages import Conversation, media_param, parse_messages

IMAGE = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}


def parse(messages: object, *, enable_multimodal: bool = True, max_items: int = 4) -> Conversation:
    return parse_messages(messages, enable_multimodal=enable_multimodal, max_items=max_items)


def user(*parts: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def refusal(messages: object, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(messages, **options)
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


def test_parts_keep_their_order_and_media_are_set_aside() -> None:
    other = {"type": "image_url", "image_url": "data:,b"}
    found = parse(user(IMAGE, {"type": "text", "text": "and"}, other))
    kinds = [part["type"] for part in found.messages[0]["content"]]
    assert kinds == ["image", "text", "image"]
    assert [part.url for part in found.media] == ["https://host/a.png", "data:,b"]
    assert [part.param for part in found.media] == [
        "messages[0].content[0].image_url",
        "messages[0].content[2].image_url",
    ]


def test_media_of_all_turns_are_in_one_row() -> None:
    messages = [
        *user(IMAGE),
        {"role": "assistant", "content": "a cat"},
        *user({"type": "text", "text": "?"}, IMAGE),
    ]
    assert [part.param for part in parse(messages).media] == [
        "messages[0].content[0].image_url",
        "messages[2].content[1].image_url",
    ]


@pytest.mark.parametrize("messages", [None, "hello", {}, []])
def test_messages_must_be_a_list_with_something_in_it(messages: object) -> None:
    assert refusal(messages).param == "messages"


@pytest.mark.parametrize("role", ["robot", None, 3, ["user"]])
def test_an_unknown_role_is_refused_by_name(role: object) -> None:
    error = refusal([{"role": role, "content": "x"}])
    assert error.param == "messages[0].role"
    assert "developer" in error.message


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_known_roles_pass(role: str) -> None:
    assert parse([{"role": role, "content": "x"}]).messages[0]["role"] == role


@pytest.mark.parametrize("content", [None, 3, {"type": "text"}])
def test_content_must_be_text_or_parts(content: object) -> None:
    assert refusal([{"role": "user", "content": content}]).param == "messages[0].content"


@pytest.mark.parametrize("kind", ["audio_url", "input_audio", "image_embeds"])
def test_a_part_not_served_yet_is_named_with_what_is_served(kind: str) -> None:
    error = refusal(user({"type": "text", "text": "x"}, {"type": kind, kind: {}}))
    assert error.param == "messages[0].content[1]"
    assert kind in error.message and "text, image_url" in error.message


@pytest.mark.parametrize("part", [{"type": "hologram"}, {}, "text", None])
def test_an_unknown_part_is_refused(part: object) -> None:
    assert refusal(user(part)).param == "messages[0].content[0]"


@pytest.mark.parametrize("value", [None, "", "  ", {}, {"url": None}, {"url": ""}, {"url": 3}, [], 7])
def test_an_image_without_a_url_is_refused(value: object) -> None:
    assert (
        refusal(user({"type": "image_url", "image_url": value})).param == "messages[0].content[0].image_url"
    )


@pytest.mark.parametrize("url", ["ftp://host/a", "/a.png", "a.png", "gopher://x"])
def test_other_schemes_are_refused(url: str) -> None:
    assert "http(s) and data:" in refusal(user({"type": "image_url", "image_url": {"url": url}})).message


def test_a_scheme_may_be_in_capitals() -> None:
    assert parse(user({"type": "image_url", "image_url": {"url": "HTTPS://host/a"}})).media


def test_a_client_uuid_stands_beside_the_picture() -> None:
    assert [part.uuid for part in parse(user({**IMAGE, "uuid": "mine"}, IMAGE)).media] == ["mine", None]


@pytest.mark.parametrize("image", [{}, {"image_url": None}])
def test_a_uuid_alone_names_a_picture(image: dict[str, Any]) -> None:
    (part,) = parse(user({"type": "image_url", "uuid": "mine", **image})).media
    assert (part.uuid, part.url) == ("mine", "")


@pytest.mark.parametrize("image", [{}, {"image_url": None}])
def test_a_picture_with_neither_url_nor_uuid_is_refused(image: dict[str, Any]) -> None:
    error = refusal(user({"type": "image_url", **image}))
    assert error.param == "messages[0].content[0].image_url"
    assert "uuid" in error.message


@pytest.mark.parametrize("uuid", ["", None, 7, ["a"], {"id": "a"}, "x" * 513])
def test_a_uuid_must_be_a_text_that_is_not_empty(uuid: object) -> None:
    error = refusal(user({**IMAGE, "uuid": uuid}))
    assert error.param == "messages[0].content[0].uuid"


def test_a_uuid_inside_the_media_field_is_refused() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://host/a.png", "uuid": "mine"}}
    assert refusal(user(image)).param == "messages[0].content[0].image_url.uuid"


@pytest.mark.parametrize("kind", ["video_url", "audio_url", "input_audio"])
def test_a_uuid_of_anything_but_an_image_is_refused(kind: str) -> None:
    part = {"type": kind, kind: {"url": "https://host/a"}, "uuid": "mine"}
    assert refusal(user(part)).param == "messages[0].content[0].uuid"


def test_bare_base64_is_told_what_it_lacks() -> None:
    image = {"type": "image_url", "image_url": {"url": "iVBORw0KGgo" * 20}}
    assert "data:image/png;base64," in refusal(user(image)).message


def test_media_on_a_text_only_deployment_name_the_setting() -> None:
    error = refusal(user(IMAGE), enable_multimodal=False)
    assert "enable_multimodal" in error.message
    assert error.code == "multimodal_disabled"


def test_one_item_more_than_the_limit_is_refused_with_both_numbers() -> None:
    assert len(parse(user(*[IMAGE] * 4)).media) == 4
    error = refusal(user(*[IMAGE] * 5))
    assert error.param == "messages[0].content[4].image_url"
    assert "item 5" in error.message and "4 (media.max_items)" in error.message


def test_tool_calls_pass_with_their_arguments_as_an_object() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "cat"}'}}
    message = parse([{"role": "assistant", "content": None, "tool_calls": [call]}]).messages[0]
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "cat"}}
    assert call["function"]["arguments"] == '{"at": "cat"}'  # the request stays as it was


@pytest.mark.parametrize("arguments", ["not json", "[1]", None, "", 3, "[" * 100_000])
def test_arguments_that_are_no_object_become_an_empty_one(arguments: object) -> None:
    call = {"function": {"name": "look", "arguments": arguments}}
    message = parse([{"role": "assistant", "tool_calls": [call]}]).messages[0]
    assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("calls", ["x", [3], [{}], [{"function": "look"}]])
def test_malformed_tool_calls_are_refused(calls: object) -> None:
    param = refusal([{"role": "assistant", "tool_calls": calls}]).param
    assert param is not None and param.startswith("messages[0].tool_calls")


@pytest.mark.parametrize("message", [{"role": "x" * 9999}, user({"type": "x" * 9999})[0]])
def test_a_refusal_does_not_repeat_a_long_value_whole(message: dict[str, object]) -> None:
    assert len(refusal([message]).message) < 300


def test_each_item_is_found_again_by_its_place_in_the_prompt() -> None:
    text = {"type": "text", "text": "a"}
    turns = [*user(IMAGE), {"role": "assistant", "content": "b"}, *user(text, IMAGE, IMAGE)]
    paths = [media_param(turns, index) for index in range(4)]
    assert paths[:3] == [part.param for part in parse(turns).media]
    assert paths[2] == "messages[2].content[2].image_url"
    assert paths[3] is None


def test_a_tools_answer_in_parts_becomes_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = parse([{"role": "tool", "tool_call_id": "1", "content": parts}]).messages[0]
    assert (message["content"], message["tool_call_id"]) == ("a\nb", "1")
