"""Identities of videos: in domains of their own, so that no cache takes a file's picture for its clip."""

from __future__ import annotations

import numpy as np

from processors.identity import NO_KEY, IdentityKey, identity_of_fields, identity_of_url
from processors.video_decode import DecodedVideo
from sightline_types import MediaId

__all__ = ["identity_of_clip", "identity_of_video_file", "identity_of_video_url"]


def identity_of_clip(clip: DecodedVideo, key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of everything that the engine is given of a clip, whatever file it came from.

    Frames, their shape and type, the file's frame rate and length, and which frames they are: the engine
    writes their times into the prompt (Qwen3-VL) or into positions (Qwen2.5-VL).
    """
    shape = clip.shape
    indices = np.array(shape.frame_indices, dtype="<i8")
    rate = np.array([shape.source_fps or 0.0], dtype="<f8")
    seconds = indices / rate[0] if rate[0] > 0 else np.zeros(len(indices))
    fields = [
        b"video",
        "x".join(map(str, clip.frames.shape)).encode(),
        clip.frames.dtype.str.encode(),
        np.ascontiguousarray(clip.frames).data.cast("B"),
        rate.tobytes(),
        seconds.astype("<f8").tobytes(),
        indices.tobytes(),
        str(shape.total_frames).encode(),
    ]
    return identity_of_fields(b"clip", fields, key)


def identity_of_video_file(data: bytes, key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of an encoded file whose frames are sampled by the replica."""
    return identity_of_fields(b"video-bytes", [data], key)


def identity_of_video_url(url: str, bucket: int, key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of the video that a URL names during one time bucket; see `identity.time_bucket`."""
    return identity_of_url(url, bucket, key, domain=b"video-url")
