"""OpenAI's `messages`, checked, and made ready for a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from processors.errors import RequestError
from sightline_types import Modality

__all__ = ["Conversation", "MediaPart", "media_param", "parse_messages"]

ROLES = ("system", "developer", "user", "assistant", "tool")
SERVED_PARTS = "text, image_url, video_url"
_MEDIA_PARTS = ("audio_url", "input_audio", "image_embeds")
_SCHEMES = ("http://", "https://", "data:", "file:")
MAX_UUID_CHARS = 512
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}")
#: Fields beside role and content that chat templates read.
_TEMPLATE_FIELDS = ("name", "tool_call_id", "reasoning", "reasoning_content")


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A media item as the request names it.

    url: empty where only a uuid names it. param: its path in the request. uuid: the client's own name.
    """

    modality: Modality
    url: str
    param: str
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """messages: for a template, content a text or a list of {"type": "text" | "image" | "video", ...} parts.

    media: in the order of the image and video parts.
    """

    messages: tuple[dict[str, Any], ...]
    media: tuple[MediaPart, ...] = ()


def parse_messages(messages: object, *, enable_multimodal: bool, max_items: int) -> Conversation:
    """Check a request's `messages`.

    Raises:
        RequestError: 400, with the path of what is wrong.
    """
    if not isinstance(messages, list) or not messages:
        raise _refused("messages", "must be a list with at least one message")
    media: list[MediaPart] = []
    ready = tuple(_message(m, f"messages[{i}]", media) for i, m in enumerate(messages))
    if media and not enable_multimodal:
        text = "holds media, but this deployment serves text only (enable_multimodal is false)"
        raise _refused(media[0].param, text, code="multimodal_disabled")
    if len(media) > max_items:
        raise _refused(
            media[max_items].param,
            f"is media item {max_items + 1}; the limit is {max_items} (media.max_items)",
        )
    return Conversation(ready, tuple(media))


def media_param(messages: Sequence[object], index: int) -> str | None:
    """The path of media item `index` of messages that were parsed before; None where there are fewer."""
    media: list[MediaPart] = []
    for i, message in enumerate(messages):
        _message(message, f"messages[{i}]", media)
        if len(media) > index:
            return media[index].param
    return None


def _refused(param: str, problem: str, *, code: str | None = None) -> RequestError:
    return RequestError(f"{param} {problem}", param=param, code=code)


def _quoted(value: object) -> str:
    """A value as an error may repeat it, however long it is."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _message(message: object, param: str, media: list[MediaPart]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _refused(param, "must be an object with a role and content")
    role = message.get("role")
    if role not in ROLES:
        raise _refused(f"{param}.role", f"is {_quoted(role)}; known roles are {', '.join(ROLES)}")
    ready: dict[str, Any] = {"role": role, "content": _content(message, role, param, media)}
    ready |= {name: message[name] for name in _TEMPLATE_FIELDS if message.get(name) is not None}
    if role == "assistant" and message.get("tool_calls"):
        ready["tool_calls"] = _tool_calls(message["tool_calls"], f"{param}.tool_calls")
    return ready


def _content(message: Mapping[str, Any], role: str, param: str, media: list[MediaPart]) -> str | list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""  # beside tool calls it may be left out
    if not isinstance(content, list):
        raise _refused(f"{param}.content", "must be a text or a list of parts")
    parts = [_part(part, f"{param}.content[{i}]", media) for i, part in enumerate(content)]
    if role == "tool" and all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)  # most templates take a text only here
    return parts


def _part(part: object, param: str, media: list[MediaPart]) -> dict[str, str]:
    if not isinstance(part, Mapping):
        raise _refused(param, f"must be an object with a type; served types are {SERVED_PARTS}")
    kind = part.get("type")
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise _refused(f"{param}.text", "must be a text")
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        uuid = _uuid(part, param)
        url = _media_url(part, "image_url", param, is_optional=uuid is not None)
        media.append(MediaPart(Modality.IMAGE, url, f"{param}.image_url", uuid))
        return {"type": "image"}
    if kind == "video_url":
        if "uuid" in part:
            raise _refused(f"{param}.uuid", "is served for images only")
        media.append(MediaPart(Modality.VIDEO, _media_url(part, "video_url", param), f"{param}.video_url"))
        return {"type": "video"}
    if kind in _MEDIA_PARTS:
        if "uuid" in part:
            raise _refused(f"{param}.uuid", "is served for images only")
        raise _refused(
            param, f"is of type {_quoted(kind)}, which is not served yet; served types are {SERVED_PARTS}"
        )
    raise _refused(param, f"has the unknown type {_quoted(kind)}; served types are {SERVED_PARTS}")


def _uuid(part: Mapping[str, Any], param: str) -> str | None:
    """The client's name for the item, beside the media field and not in it."""
    if isinstance(part.get("image_url"), Mapping) and "uuid" in part["image_url"]:
        raise _refused(f"{param}.image_url.uuid", "stands beside image_url, not in it")
    if "uuid" not in part:
        return None
    uuid = part["uuid"]
    if not isinstance(uuid, str) or not uuid:
        raise _refused(f"{param}.uuid", f"is {_quoted(uuid)}; it must be a text that is not empty")
    if len(uuid) > MAX_UUID_CHARS:
        raise _refused(f"{param}.uuid", f"has {len(uuid)} characters; the limit is {MAX_UUID_CHARS}")
    return uuid


def _media_url(part: Mapping[str, Any], field: str, param: str, *, is_optional: bool = False) -> str:
    value = part.get(field)
    if value is None and is_optional:
        return ""
    if value is None:
        raise _refused(f"{param}.{field}", "is missing, and there is no uuid of a picture sent before")
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url.strip():
        raise _refused(f"{param}.{field}", 'must be {"url": "..."} with an http(s) or data: URL')
    url = url.strip()
    if not url[:8].lower().startswith(_SCHEMES):
        hint = f"begins with {url[:8]!r}; served are http(s) and data: URLs"
        if _looks_like_base64(url):
            hint += ". Bare base64 needs data:image/png;base64, before it"
        raise _refused(f"{param}.{field}", hint)
    return url


def _looks_like_base64(text: str) -> bool:
    return len(text) > 64 and _BASE64.fullmatch(text[:256]) is not None


def _tool_calls(calls: object, param: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise _refused(param, "must be a list")
    return [_tool_call(call, f"{param}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, param: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _refused(param, 'must be {"type": "function", "function": {...}}')
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: object) -> dict[str, Any]:
    """Templates want an object. History that is no JSON object is kept from failing every later turn."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {}
