"""What stands for a media item in a prompt: in texts of a template, and in what clients may not write.

Most families have a token for it, which `SpecialTokens` tells from a client's text. Where it is plain text
(Phi-3-vision, InternVL, Nemotron's clips), the engine takes the first such text for the item, whoever wrote
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from processors.errors import RequestError
from processors.layout import FamilyLayout
from processors.messages import Conversation
from processors.special_tokens import texts_of
from sightline_types import Modality

__all__ = ["TextPlaceholders", "media_texts"]


def media_texts(layout: FamilyLayout | None, tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """What stands for an item of each kind, as `ChatTemplate` takes it."""
    if layout is None:
        return {}
    found = {str(modality): text for modality, text in layout.placeholder_texts.items()}
    for modality, token in layout.placeholders.items():
        name = tokenizer.convert_ids_to_tokens(token)
        before, after = layout.frames.get(modality, ("", ""))
        if isinstance(name, str):
            found[str(modality)] = f"{before}{name}{after}"
    return found


class TextPlaceholders:
    """Finds the placeholders that are text in what a client wrote."""

    def __init__(self, texts: Mapping[Modality, str]) -> None:
        self._patterns = {
            modality: re.compile(re.escape(text).replace(re.escape("{number}"), r"\d+"))
            for modality, text in texts.items()
        }

    def check(self, conversation: Conversation) -> None:
        """
        Raises:
            RequestError: 400 for a text that stands for an item of a kind that the request has.
        """
        kinds = {part.modality for part in conversation.media}
        for modality, pattern in self._patterns.items():
            if modality in kinds and (found := _first(pattern, conversation.messages)) is not None:
                message = f"the messages hold {found}, which stands for media in this model's prompt"
                raise RequestError(f"{message}; leave it out", param="messages", code="placeholder_mismatch")


def _content(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _first(pattern: re.Pattern[str], messages: Iterable[Mapping[str, Any]]) -> str | None:
    """In a text, or in texts that a template writes one after the other."""
    for message in messages:
        for text in (*texts_of(message), _content(message)):
            if (found := pattern.search(text)) is not None:
                return found.group()
    return None
