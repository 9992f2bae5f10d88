"""From a chat request to tokens and media: template, tokenizer, fetch, probe, identity, layout."""

from __future__ import annotations

from processors.config import MediaConfig
from processors.decode import decode_image
from processors.errors import MediaTooLarge, MediaUnreachable, RequestError, UnsupportedMedia
from processors.families import find_layout, layout_for
from processors.fetch import Fetcher
from processors.identity import (
    IdentityKey,
    identity_of_bytes,
    identity_of_fields,
    identity_of_pixels,
    identity_of_url,
    identity_of_uuid,
)
from processors.items import RequestScope
from processors.layout import (
    FamilyLayout,
    LayoutOptions,
    LayoutRefused,
    PlacedItem,
    Refusal,
    Replacement,
    Shape,
)
from processors.messages import media_param
from processors.model_files import ModelFiles, ModelFolder
from processors.probe import NeedMoreBytes, ProbeError, UnknownFormat, probe_image
from processors.prompt import PromptBuilder
from processors.video_config import VideoConfig
from processors.video_decode import DecodedVideo, VideoUndecodable, decode_video
from processors.video_identity import identity_of_clip
from processors.video_pool import DecoderFailed, VideoDecoders
from processors.video_sampling import Sampling, loader_rule

__all__ = [
    "DecodedVideo",
    "DecoderFailed",
    "FamilyLayout",
    "Fetcher",
    "IdentityKey",
    "LayoutOptions",
    "LayoutRefused",
    "MediaConfig",
    "MediaTooLarge",
    "MediaUnreachable",
    "ModelFiles",
    "ModelFolder",
    "NeedMoreBytes",
    "PlacedItem",
    "ProbeError",
    "PromptBuilder",
    "Refusal",
    "Replacement",
    "RequestError",
    "RequestScope",
    "Sampling",
    "Shape",
    "UnknownFormat",
    "UnsupportedMedia",
    "VideoConfig",
    "VideoDecoders",
    "VideoUndecodable",
    "decode_image",
    "decode_video",
    "find_layout",
    "identity_of_bytes",
    "identity_of_clip",
    "identity_of_fields",
    "identity_of_pixels",
    "identity_of_url",
    "identity_of_uuid",
    "layout_for",
    "loader_rule",
    "media_param",
    "probe_image",
]
