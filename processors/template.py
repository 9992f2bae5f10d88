"""The model's own chat template and tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from processors.encoder import Encoded, PromptEncoder
from processors.errors import RequestError
from processors.messages import Conversation
from processors.special_tokens import SpecialTokens, map_texts, texts_of, unused_mark
from processors.token_cache import TokenCache, TokenCacheStats
from sightline_types import TokenIds

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

    token_ids: TokenIds
    first_turn_tokens: int = 0

    @property
    def array(self) -> npt.NDArray[np.int64]:
        """A copy of `token_ids`."""
        return np.asarray(self.token_ids, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Request:
    """What a client's own words are in: everything that a template renders."""

    conversation: Conversation
    tools: Sequence[Mapping[str, Any]] | None
    template_kwargs: Mapping[str, Any]

    @property
    def texts(self) -> list[str]:
        return list(
            texts_of([self.conversation.messages, list(self.tools or ()), dict(self.template_kwargs)])
        )

    def map(self, function: Callable[[str], str]) -> _Request:
        messages = tuple(map_texts(self.conversation.messages, function))
        tools = map_texts(self.tools, function) if self.tools else self.tools
        kwargs = map_texts(dict(self.template_kwargs), function)
        return _Request(Conversation(messages, self.conversation.media), tools, kwargs)


class ChatTemplate:
    """Safe to use from several threads: nothing but its cache changes after construction.

    media_token_ids: tokens that stand for media; with the special tokens, they count only where the
        template wrote them: in a client's text they are plain text.
    media_texts: what stands for an item ("image", "video") in a template that takes texts only, `{number}`
        counting the items of its kind from 1. Without, such a template takes no media.
    cache_bytes: for the ids of parts that come again.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        media_token_ids: Sequence[int] = (),
        *,
        media_texts: Mapping[str, str] = MappingProxyType({}),
        cache_bytes: int = 64 << 20,
    ) -> None:
        self._tokenizer = tokenizer
        self._specials = SpecialTokens.of(tokenizer, media_token_ids)
        self._media_texts = media_texts
        self._cache = TokenCache(cache_bytes)
        self._encoder = PromptEncoder(tokenizer, self._specials, self._cache)
        self._source = _source_of(tokenizer)
        self._knows_developer = "'developer'" in self._source or '"developer"' in self._source
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
        numbers: Counter[str] = Counter()
        messages = [self._fit(message, numbers) for message in conversation.messages]
        try:
            return self._apply(messages, tools=tools, add_generation_prompt=add_generation_prompt, **extra)
        except _TEMPLATE_ERRORS as error:
            message = f"the model's chat template refuses the messages: {error}"
            raise RequestError(message, param="messages", code="chat_template_error") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered prompt. The template has written its special tokens itself."""
        return list(self._encoder.encode(text).ids)

    @property
    def cache_stats(self) -> TokenCacheStats:
        return self._cache.stats

    def tokenize(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> TokenizedChat:
        """`render`, then encode, and the end of the first user turn.

        Raises:
            RequestError: as `render`; or 400 for text that is not Unicode, and for special tokens in a
                client's text where they cannot be told from the template's own.
        """
        request = _Request(conversation, tools, chat_template_kwargs or {})
        texts = request.texts
        if any(self._specials.would_mark(text) for text in texts):
            encoded = self._tokenize_marked(request, texts, add_generation_prompt)
        else:
            text = self._render(request, add_generation_prompt)
            encoded = self._encoder.encode(text, self._first_turn_end(request, text))
        return TokenizedChat(TokenIds(encoded.array), encoded.first)

    def _tokenize_marked(
        self, request: _Request, texts: Sequence[str], add_generation_prompt: bool
    ) -> Encoded:
        """What a client wrote stays plain text: a mark within it, that goes again before encoding, keeps it
        from being taken for the template's.

        Raises:
            RequestError: 400 where the template makes something else of marked text.
        """
        mark = unused_mark([*texts, self._source])
        text = self._render(request, add_generation_prompt)
        if mark is not None:
            marked_request = request.map(lambda one: self._specials.marked(one, mark))
            marked = self._render(marked_request, add_generation_prompt)
            if marked.replace(mark, "") == text:
                if self._specials.written(text) == self._specials.written(marked, mark):
                    return self._encoder.encode(text, self._first_turn_end(request, text))
                end = self._first_turn_end(marked_request, marked)
                return self._encoder.encode_marked(marked, mark, end)
        name = self._specials.first_guarded(texts)
        message = f"the messages hold {name}, which the chat template does not keep as text; leave it out"
        raise RequestError(message, param="messages", code="special_token")

    def _render(self, request: _Request, add_generation_prompt: bool) -> str:
        return self.render(
            request.conversation,
            tools=request.tools,
            chat_template_kwargs=request.template_kwargs,
            add_generation_prompt=add_generation_prompt,
        )

    def _first_turn_end(self, request: _Request, text: str) -> int:
        """Characters up to there, found by rendering a second time, which is cheap beside encoding."""
        messages = request.conversation.messages
        roles = [message["role"] for message in messages]
        if "user" not in roles:
            return 0
        start = Conversation(messages[: roles.index("user") + 1])
        try:
            prefix = self._render(_Request(start, request.tools, request.template_kwargs), False)
        except RequestError:
            return 0
        return len(prefix) if text.startswith(prefix) else 0

    def _apply(self, messages: list[dict[str, Any]], **more: Any) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **more))

    def _fit(self, message: dict[str, Any], numbers: Counter[str]) -> dict[str, Any]:
        """The message as this template can take it, by the rules of vLLM's chat path.

        numbers: of the items of each kind so far; counted on.
        """
        fitted = dict(message)
        if fitted["role"] == "developer" and not self._knows_developer:
            fitted["role"] = "system"
        if isinstance(fitted["content"], list) and not self._takes_parts:
            fitted["content"] = self._joined(fitted["content"], numbers)
        return fitted

    def _joined(self, parts: list[dict[str, str]], numbers: Counter[str]) -> str:
        """A text for each media item, one a line, then the texts, one a line."""
        lines = []
        for kind in (part["type"] for part in parts if part["type"] != "text"):
            if kind not in self._media_texts:
                message = "the model's chat template takes text only; send no media"
                raise RequestError(message, param="messages", code="chat_template_text_only")
            numbers[kind] += 1
            lines.append(self._media_texts[kind].replace("{number}", str(numbers[kind])))
        return "\n".join([*lines, *(part["text"] for part in parts if part["type"] == "text")])

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


def _source_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """All templates of a tokenizer that has one for each purpose."""
    template = tokenizer.chat_template or ""
    return "\n".join(map(str, template.values())) if isinstance(template, dict) else str(template)
