"""Identities of media: 64-bit hashes over length-prefixed fields, one domain for each way of naming.

xxh3 is quick and not cryptographic: where tenants do not trust each other, a secret keeps them from
making collisions on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import xxhash

from sightline_types import MediaId

__all__ = ["identity_of_bytes", "identity_of_pixels", "identity_of_url", "time_bucket"]


def identity_of_url(url: str, bucket: int, secret: str | None = None) -> MediaId:
    """The identity of what a URL names during one time bucket; see `time_bucket`."""
    return _identity(b"url", [url.encode("utf-8", "surrogatepass"), str(bucket).encode()], secret)


def identity_of_bytes(data: bytes, secret: str | None = None) -> MediaId:
    """The identity of an encoded file."""
    return _identity(b"bytes", [data], secret)


def identity_of_pixels(pixels: npt.NDArray[np.uint8], secret: str | None = None) -> MediaId:
    """The identity of a decoded picture, shape (height, width, 3), RGB."""
    height, width = pixels.shape[:2]
    size = f"{width}x{height}".encode()
    values = np.ascontiguousarray(pixels).data.cast("B")
    return _identity(b"pixels", [b"image", b"RGB", size, pixels.dtype.str.encode(), values], secret)


def time_bucket(now: float, ttl_s: float) -> int:
    """The number of whole lifetimes since the epoch."""
    return int(now // ttl_s)


def _identity(domain: bytes, fields: Iterable[bytes | memoryview], secret: str | None) -> MediaId:
    seed = 0 if secret is None else xxhash.xxh3_64_intdigest(b"sightline-identity-secret" + secret.encode())
    digest = xxhash.xxh3_64(seed=seed)
    for part in (b"sightline-media-1", domain, *fields):
        # Lengths keep ("ab", "c") apart from ("a", "bc").
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return MediaId(digest.intdigest())
