"""Block keys: one 64-bit chained hash per full block, the same for requests and for engine events.

    key[-1] = H(domain tag, scheme, salt, lora), each field as u64 LE length and UTF-8 bytes
    key[i]  = H(key[i-1] as u64 LE | B tokens as int64 LE | for each extra: media id u64 LE, offset int64 LE)

H is xxh3_64 with seed 0, and a result of 0 becomes 1, so that 0 is never a key. Tokens are hashed as
int64 because SGLang's pad values reach 2^62. The layout is fixed by tests/data/block_keys.json.

Errors of the router's pure core, all of them `RouterError`:

    RouterError
    ├── UnsupportedScheme (keys): a key scheme that this version cannot compute
    ├── ContractRefused (audit): a worker registered with a contract that cannot be served
    ├── NoWorker (core): nobody can take the request
    └── EventDecodeError (events): an event batch that cannot be read
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from sightline_types import BlockKey, KeyedView, KeyScheme, KeySpec, MediaId, MediaSpan, TokenView

__all__ = ["SUPPORTED_SCHEMES", "RouterError", "UnsupportedScheme", "block_keys", "chain_key", "root_key"]

#: The schemes whose keys this module computes.
SUPPORTED_SCHEMES = frozenset({KeyScheme.VLLM})

_DOMAIN = "sightline/block-key/1"
_EXTRA = struct.Struct("<Qq")
_TOKEN_BYTES = 8


class RouterError(Exception):
    """Base of the errors that the router's pure core raises."""


class UnsupportedScheme(RouterError, NotImplementedError):
    """The key scheme is known by name, but not computed here."""


def root_key(scheme: KeyScheme, salt: str = "", lora: str = "") -> BlockKey:
    """The parent of a prompt's first block.

    Raises:
        UnsupportedScheme: a scheme that is not in `SUPPORTED_SCHEMES`.
    """
    if scheme not in SUPPORTED_SCHEMES:
        supported = ", ".join(sorted(SUPPORTED_SCHEMES))
        raise UnsupportedScheme(
            f"block keys of scheme {scheme.value!r} are not computed; supported: {supported}"
        )
    # A client's salt may hold a lone surrogate (JSON can spell one): it is hashed like any other.
    fields = (text.encode("utf-8", "surrogatepass") for text in (_DOMAIN, scheme.value, salt, lora))
    return BlockKey(_digest(b"".join(len(data).to_bytes(8, "little") + data for data in fields)))


def chain_key(
    parent: BlockKey, tokens: npt.NDArray[np.int64], extras: Sequence[tuple[MediaId, int]]
) -> BlockKey:
    """The key of one block after `parent`.

    tokens: shape (B,).
    extras: of each media item that touches the block, in order: its id, and the position of its first
        token from the block's start (negative when it began in an earlier block).
    """
    return BlockKey(_chain(parent, np.ascontiguousarray(tokens, dtype="<i8").tobytes(), _pack(extras)))


def block_keys(view: TokenView, spec: KeySpec, *, salt: str = "", lora: str = "") -> KeyedView:
    """Key the full blocks below `view.exact_until`.

    Raises:
        UnsupportedScheme: a scheme that is not in `SUPPORTED_SCHEMES`.
        ValueError: a block size below 1.
    """
    size = spec.block_size
    if size < 1:
        raise ValueError(f"a block has at least one token, got block_size={size}")
    exact = max(0, min(view.exact_until, len(view)))
    num_blocks = exact // size
    extras = _extras_by_block(view.spans, size, num_blocks)
    tokens = view.token_ids[: num_blocks * size].astype("<i8", copy=False).tobytes()
    keys = _chain_all(root_key(spec.scheme, salt, lora), memoryview(tokens), size * _TOKEN_BYTES, extras)
    return KeyedView(
        keys=np.array(keys, dtype="<u8").tobytes(),
        media_blocks=tuple(sorted(extras)),
        media_ends=tuple((span.end, span.length) for span in view.spans if span.end <= exact),
    )


def _chain_all(root: BlockKey, tokens: memoryview, stride: int, extras: dict[int, bytes]) -> list[int]:
    keys: list[int] = []
    key: int = root
    for block, start in enumerate(range(0, len(tokens), stride)):
        key = _chain(key, tokens[start : start + stride], extras.get(block, b""))
        keys.append(key)
    return keys


def _extras_by_block(spans: Sequence[MediaSpan], block_size: int, num_blocks: int) -> dict[int, bytes]:
    """Packed extras of the first `num_blocks` blocks; a block that no span touches has no entry."""
    extras: dict[int, bytes] = {}
    for span in spans:
        first, last = span.offset // block_size, (span.end - 1) // block_size
        for block in range(first, min(last + 1, num_blocks)):
            packed = _EXTRA.pack(span.media_id.value, span.offset - block * block_size)
            extras[block] = extras.get(block, b"") + packed
    return extras


def _pack(extras: Sequence[tuple[MediaId, int]]) -> bytes:
    return b"".join(_EXTRA.pack(media_id.value, offset) for media_id, offset in extras)


def _chain(parent: int, tokens: bytes | memoryview, extras: bytes) -> int:
    return _digest(b"".join((parent.to_bytes(8, "little"), tokens, extras)))


def _digest(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data) or 1
