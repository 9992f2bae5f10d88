"""Identities of media: 64-bit hashes over length-prefixed fields, one domain for each way of naming.

xxh3 is quick and not cryptographic. Where tenants do not trust each other, blake3 keyed with a secret
keeps them from making collisions on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import blake3
import numpy as np
import numpy.typing as npt
import xxhash

from sightline_types import ImageSize, MediaId

__all__ = [
    "NO_KEY",
    "IdentityKey",
    "identity_of_bytes",
    "identity_of_fields",
    "identity_of_pixels",
    "identity_of_url",
    "identity_of_uuid",
    "identity_with_file",
    "identity_with_options",
    "identity_with_size",
    "time_bucket",
]

Field = bytes | memoryview

#: How `processors.decode` turns a file into RGB. Another way would be another picture to the model.
_CONVERSION = b"first frame, exif transposed, transparency on white, RGB"
#: Processor options that change how a picture is sampled, and no video.
_VIDEO_OPTIONS = frozenset({"fps", "num_frames", "do_sample_frames"})


@dataclass(frozen=True, slots=True)
class IdentityKey:
    """What identities are made with; equal on all ingress replicas of a deployment."""

    secret: str | None = None
    algorithm: Literal["xxh3", "blake3"] = "xxh3"


NO_KEY = IdentityKey()


class _Digest(Protocol):
    def update(self, data: Field, /) -> object: ...


def identity_of_url(url: str, bucket: int, key: IdentityKey = NO_KEY, *, domain: bytes = b"url") -> MediaId:
    """The identity of what an address names during one time bucket; see `time_bucket`.

    It is no identity for an engine: `identity_with_size` makes it one, so that a file of another size
    is never taken for this one.
    """
    return identity_of_fields(domain, [_utf8(url), str(bucket).encode()], key)


def identity_with_size(address: MediaId, size: ImageSize, key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of a picture of a known size behind an address."""
    return identity_of_fields(b"sized", [_of_id(address), str(size).encode()], key)


def identity_with_file(name: MediaId, file: MediaId, key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of a name (an address, a uuid) together with one very file."""
    return identity_of_fields(b"bound", [_of_id(name), _of_id(file)], key)


def identity_of_bytes(data: bytes, key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of an encoded file."""
    return identity_of_fields(b"bytes", [data], key)


def identity_of_pixels(pixels: npt.NDArray[np.uint8], key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of a decoded picture, shape (height, width, 3), RGB.

    A palette or another mode of the file is in these pixels already: what differs to the model differs
    here, and nothing else.
    """
    height, width = pixels.shape[:2]
    size = f"{width}x{height}".encode()
    values = np.ascontiguousarray(pixels).data.cast("B")
    return identity_of_fields(
        b"pixels", [b"image", b"RGB", _CONVERSION, size, pixels.dtype.str.encode(), values], key
    )


def identity_of_uuid(uuid: str, tenant: str | None, key: IdentityKey = NO_KEY) -> MediaId:
    """The identity of what a client calls `uuid`; no tenant can name another's."""
    owner = [b"", b"no tenant"] if tenant is None else [_utf8(tenant), b"tenant"]
    return identity_of_fields(b"uuid", [*owner, _utf8(uuid)], key)


def identity_with_options(
    media_id: MediaId, options: Mapping[str, Any], key: IdentityKey = NO_KEY
) -> MediaId:
    """The identity of a picture under options that change its pixels; itself where none does."""
    effective = {name: value for name, value in options.items() if name not in _VIDEO_OPTIONS}
    if not effective:
        return media_id
    text = json.dumps(effective, sort_keys=True, separators=(",", ":"), default=str)
    return identity_of_fields(b"options", [_of_id(media_id), text.encode()], key)


def time_bucket(now: float, ttl_s: float) -> int:
    """The number of whole lifetimes since the epoch."""
    return int(now // ttl_s)


def identity_of_fields(domain: bytes, fields: Iterable[Field], key: IdentityKey = NO_KEY) -> MediaId:
    """A hash over all fields, in order. Lengths keep ("ab", "c") apart from ("a", "bc")."""
    parts = (b"sightline-media-1", domain, *fields)
    if key.algorithm == "blake3":
        strong = blake3.blake3(key=_strong_key(key.secret))
        _feed(strong, parts)
        return MediaId(int.from_bytes(strong.digest(length=8), "big"))
    secret = key.secret
    seed = 0 if secret is None else xxhash.xxh3_64_intdigest(b"sightline-identity-secret" + _utf8(secret))
    quick = xxhash.xxh3_64(seed=seed)
    _feed(quick, parts)
    return MediaId(quick.intdigest())


@cache
def _strong_key(secret: str | None) -> bytes:
    context = "sightline 2026-11-29 media identities"
    return bytes(blake3.blake3(_utf8(secret or ""), derive_key_context=context).digest())


def _feed(digest: _Digest, parts: Iterable[Field]) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _of_id(media_id: MediaId) -> bytes:
    return media_id.value.to_bytes(8, "big")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
