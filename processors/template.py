"""The model's own chat template and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from processors.errors import RequestError
from processors.messages import Conversation

__all__ = ["ChatTemplate", "TokenizedChat"]

#: Names that steer rendering itself, and are no business of a request.
_RESERVED_NAMES = """
conversation messages tools documents chat_template add_generation_prompt continue_final_message tokenize
padding truncation max_length return_tensors return_dict return_assistant_tokens_mask tokenizer_kwargs
"""
_RESERVED = frozenset(_RESERVED_NAMES.split())
#: What a template may raise on messages it does not like: its own refusal, or a field it misses.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)

_PROBE_TEXT = "sightline-probe"


@dataclass(frozen=True, slots=True)
class TokenizedChat:
    """A conversation as token ids, one placeholder per media item.

    first_turn_tokens: tokens up to the end of the first user message; 0 where it cannot be told.
    """

    token_ids: tuple[int, ...]
    first_turn_tokens: int = 0


class ChatTemplate:
    """Safe to use from several threads: nothing changes after construction."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        source = str(tokenizer.chat_template or "")
        self._knows_developer = "'developer'" in source or '"developer"' in source
        self._takes_parts = self._renders_parts()
        # At its first use a fast tokenizer drops a padding or truncation that its file asks for: here,
        # before threads share it.
        self.encode(_PROBE_TEXT)

    def render(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text.

        Raises:
            RequestError: 400 when there is no template, or with what the template says against it.
        """
        if not self._tokenizer.chat_template:
            message = "the model has no chat template; add a chat_template.jinja to its folder"
            raise RequestError(message, param="messages", code="chat_template_missing")
        extra = dict(chat_template_kwargs or {})
        if reserved := sorted(_RESERVED & extra.keys()):
            message = f"chat_template_kwargs must not hold {', '.join(reserved)}"
            raise RequestError(message, param="chat_template_kwargs")
        messages = [self._fit(message) for message in conversation.messages]
        try:
            return self._apply(messages, tools=tools, add_generation_prompt=add_generation_prompt, **extra)
        except _TEMPLATE_ERRORS as error:
            message = f"the model's chat template refuses the messages: {error}"
            raise RequestError(message, param="messages", code="chat_template_error") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered prompt. The template has written its special tokens itself."""
        return list(self._encoding(text)["input_ids"])

    def tokenize(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> TokenizedChat:
        """`render`, then `encode`, and the end of the first user turn.

        Raises:
            RequestError: as `render`, or 400 for text that is not Unicode.
        """
        shared: dict[str, Any] = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
        text = self.render(conversation, add_generation_prompt=add_generation_prompt, **shared)
        encoding = self._encoding(text)
        ids = tuple(encoding["input_ids"])
        end = self._first_turn_end(conversation, text, shared)
        if end == 0 or not self._tokenizer.is_fast:
            return TokenizedChat(ids)
        token = encoding.char_to_token(end) if end < len(text) else len(ids)
        return TokenizedChat(ids, token or 0)

    def _encoding(self, text: str) -> Any:
        try:
            return self._tokenizer(text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(f"the messages are not valid Unicode: {error}", param="messages") from error

    def _first_turn_end(self, conversation: Conversation, text: str, shared: dict[str, Any]) -> int:
        """Characters up to there, found by rendering a second time, which is cheap beside encoding."""
        roles = [message["role"] for message in conversation.messages]
        if "user" not in roles:
            return 0
        start = Conversation(conversation.messages[: roles.index("user") + 1])
        try:
            prefix = self.render(start, add_generation_prompt=False, **shared)
        except RequestError:
            return 0
        return len(prefix) if text.startswith(prefix) else 0

    def _apply(self, messages: list[dict[str, Any]], **more: Any) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **more))

    def _fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message as this template can take it, by the rules of vLLM's chat path."""
        fitted = dict(message)
        if fitted["role"] == "developer" and not self._knows_developer:
            fitted["role"] = "system"
        if isinstance(fitted["content"], list) and not self._takes_parts:
            fitted["content"] = _joined(fitted["content"])
        return fitted

    def _renders_parts(self) -> bool:
        """Whether the template makes a text of a list of parts, rather than printing the list."""
        if not self._tokenizer.chat_template:
            return True
        parts = [{"type": "text", "text": _PROBE_TEXT}]
        try:
            rendered = self._apply([{"role": "user", "content": parts}])
        except _TEMPLATE_ERRORS:
            return False
        return _PROBE_TEXT in rendered and "'type'" not in rendered and '"type"' not in rendered


def _joined(parts: list[dict[str, str]]) -> str:
    if any(part["type"] != "text" for part in parts):
        message = "the model's chat template takes text only; send no media"
        raise RequestError(message, param="messages", code="chat_template_text_only")
    return "\n".join(part["text"] for part in parts)
