"""From a chat request to tokens and media: template, tokenizer, fetch, probe, identity, layout."""

from __future__ import annotations

from processors.config import MediaConfig
from processors.decode import decode_image
from processors.errors import MediaTooLarge, MediaUnreachable, RequestError, UnsupportedMedia
from processors.families import layout_for
from processors.fetch import Fetcher
from processors.identity import identity_of_bytes, identity_of_pixels, identity_of_url
from processors.items import as_fetched
from processors.layout import FamilyLayout, LayoutOptions, LayoutRefused, Refusal, Replacement
from processors.messages import media_param
from processors.model_files import ModelFiles
from processors.probe import NeedMoreBytes, UnknownFormat, probe_image
from processors.prompt import PromptBuilder

__all__ = [
    "FamilyLayout",
    "Fetcher",
    "LayoutOptions",
    "LayoutRefused",
    "MediaConfig",
    "MediaTooLarge",
    "MediaUnreachable",
    "ModelFiles",
    "NeedMoreBytes",
    "PromptBuilder",
    "Refusal",
    "Replacement",
    "RequestError",
    "UnknownFormat",
    "UnsupportedMedia",
    "as_fetched",
    "decode_image",
    "identity_of_bytes",
    "identity_of_pixels",
    "identity_of_url",
    "layout_for",
    "media_param",
    "probe_image",
]
