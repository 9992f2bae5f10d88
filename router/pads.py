"""Pad values: what SGLang writes over an item's placeholder tokens, to tell media apart in its radix cache.

The values depend on the item's 64-bit identity h and on the release. Sources, in SGLang's
`managers/schedule_batch.py`: `_compute_pad_value` (0.5.13 to 0.5.22), `_compute_pad_values` and
`MultimodalDataItem.padding_sequence` (0.5.23).

    single  one value for all tokens: 1,000,000 + h mod 2^30
    wide    four values, over and over: d = sha256("sglang-mm-wide-pad-v1" | h as u64 BE), and
            value[i] = 1,000,000 + (the u64 BE at d[8i] mod 2^62)

Each run of placeholder tokens begins with the first value again.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from sightline_types import KeyScheme, MediaId, TokenView

__all__ = ["pad_values", "padded_tokens"]

_SHIFT = 1_000_000
_SINGLE_MODULUS = 1 << 30
_WIDE_TAG = b"sglang-mm-wide-pad-v1"
_WIDE_MASK = (1 << 62) - 1
_WIDE_COUNT = 4


def pad_values(scheme: KeyScheme, media_id: MediaId) -> tuple[int, ...]:
    """What an item's placeholder tokens become, in turn; empty where the scheme leaves them as they are."""
    match scheme:
        case KeyScheme.SGLANG_SINGLE:
            return (_SHIFT + media_id.value % _SINGLE_MODULUS,)
        case KeyScheme.SGLANG_WIDE:
            digest = hashlib.sha256(_WIDE_TAG + media_id.value.to_bytes(8, "big")).digest()
            words = (int.from_bytes(digest[8 * i : 8 * i + 8], "big") for i in range(_WIDE_COUNT))
            return tuple(_SHIFT + (word & _WIDE_MASK) for word in words)
    return ()


def padded_tokens(view: TokenView, scheme: KeyScheme) -> npt.NDArray[np.int64]:
    """The view's tokens as the engine's cache sees them: shape (n,); the view itself is not changed."""
    if not scheme.has_pads or not view.spans:
        return view.token_ids
    tokens = view.token_ids.copy()
    for span in view.spans:
        values = np.array(pad_values(scheme, span.media_id), dtype=np.int64)
        for first, end in span.embed_runs:
            run = tokens[first:end]
            run[:] = np.resize(values, len(run))
    return tokens
