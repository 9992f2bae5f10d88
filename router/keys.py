"""Block keys: one 64-bit chained hash per full block, the same for requests and for engine events.

    key[-1] = H(domain tag, scheme, salt, lora), each field as u64 LE length and UTF-8 bytes
    key[i]  = H(key[i-1] as u64 LE | B tokens as int64 LE | for each extra: media id u64 LE, offset int64 LE)

H is xxh3_64 with seed 0, and a result of 0 becomes 1, so that 0 is never a key. Tokens are hashed as
int64 because SGLang's pad values reach 2^62. A scheme with pads has no extras: the pads stand where the
placeholder tokens were (`router.pads`), as they do in the engine's events. The layout is fixed by
tests/data/block_keys.json. It is computed by `router.compiled_keys` where numba is there, and by
`router.plain_keys` where not.

Errors of the router's pure core, all of them `RouterError`:

    RouterError
    ├── ContractRefused (contracts): a worker registered with a contract that cannot be served
    ├── NoWorker (fleet): nobody can take the request
    ├── UnknownWorker (fleet): the request is pinned to a worker that is not here
    ├── Overloaded (admission): every worker is past its limit
    ├── TooManyWorkers (lanes): more workers than the compiled index has room for
    └── EventDecodeError (events): an event batch that cannot be read
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from router import plain_keys
from router.compiling import can_compile
from router.pads import padded_tokens
from router.plain_keys import Extras, digest
from sightline_types import BlockKey, KeyedView, KeyScheme, KeySpec, MediaSpan, TokenView

__all__ = [
    "RouterError",
    "block_keys",
    "chain_key",
    "chain_keys",
    "root_key",
    "warm_up",
]

_DOMAIN = "sightline/block-key/1"


class _Chainer(Protocol):
    """`router.plain_keys` or `router.compiled_keys`."""

    def chain_view(
        self,
        root: int,
        tokens: npt.NDArray[np.int64],
        block_size: int,
        num_blocks: int,
        spans: Sequence[MediaSpan],
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]: ...

    def chain_blocks(
        self, parent: int, tokens: npt.NDArray[np.int64], block_size: int, extras: Sequence[Extras]
    ) -> npt.NDArray[np.uint64]: ...

    def warm_up(self) -> None: ...


@cache
def _chainer() -> _Chainer:
    if not can_compile():
        return plain_keys
    from router import compiled_keys

    return compiled_keys


def warm_up() -> None:
    """Have the kernels ready now rather than at the first prompt. Idempotent."""
    _chainer().warm_up()


class RouterError(Exception):
    """Base of the errors that the router's pure core raises."""


def root_key(scheme: KeyScheme, salt: str = "", lora: str = "") -> BlockKey:
    """The parent of a prompt's first block."""
    # A client's salt may hold a lone surrogate (JSON can spell one): it is hashed like any other.
    fields = (text.encode("utf-8", "surrogatepass") for text in (_DOMAIN, scheme.value, salt, lora))
    return BlockKey(digest(b"".join(len(data).to_bytes(8, "little") + data for data in fields)))


def chain_key(parent: BlockKey, tokens: npt.NDArray[np.int64], extras: Extras) -> BlockKey:
    """The key of one block after `parent`.

    tokens: shape (B,).
    extras: of each media item that touches the block, in order: its id, and the position of its first
        token from the block's start (negative when it began in an earlier block).
    """
    return BlockKey(int(plain_keys.chain_blocks(parent, tokens, len(tokens), [extras])[0]))


def chain_keys(
    parent: BlockKey, tokens: npt.NDArray[np.int64], extras: Sequence[Extras] = ()
) -> npt.NDArray[np.uint64]:
    """The keys of consecutive blocks after `parent`, in one call: shape (N,), uint64.

    tokens: shape (N, B).
    extras: of each block, as for `chain_key`; of length N, or empty where no block has any.

    Raises:
        ValueError: `tokens` is not of two dimensions, or `extras` of another length.
    """
    if tokens.ndim != 2 or len(extras) not in (0, len(tokens)):
        raise ValueError(f"tokens of shape (N, B) and N extras, got {tokens.shape} and {len(extras)}")
    return _chainer().chain_blocks(parent, tokens, tokens.shape[1], extras or [()] * len(tokens))


def block_keys(view: TokenView, spec: KeySpec, *, salt: str = "", lora: str = "") -> KeyedView:
    """Key the full blocks below `view.exact_until`.

    Raises:
        ValueError: a block size below 1.
    """
    size = spec.block_size
    if size < 1:
        raise ValueError(f"a block has at least one token, got block_size={size}")
    exact = max(0, min(view.exact_until, len(view)))
    num_blocks = exact // size
    root = root_key(spec.scheme, salt, lora)
    tokens, spans = padded_tokens(view, spec.scheme), view.spans
    keys, media_blocks = _chainer().chain_view(
        root, tokens, size, num_blocks, () if spec.scheme.has_pads else spans
    )
    if spec.scheme.has_pads:
        media_blocks = _touched_blocks(spans, size, num_blocks)
    return KeyedView(
        keys=keys.astype("<u8", copy=False).tobytes(),
        media_blocks=media_blocks.astype("<i4").tobytes(),
        media_ends=tuple((span.end, span.length) for span in view.spans if span.end <= exact),
    )


def _touched_blocks(spans: Sequence[MediaSpan], block_size: int, num_blocks: int) -> npt.NDArray[np.int64]:
    """Of the first `num_blocks` blocks those that touch a span, ascending."""
    touched: set[int] = set()
    for span in spans:
        touched.update(range(span.offset // block_size, min((span.end - 1) // block_size + 1, num_blocks)))
    return np.array(sorted(touched), dtype=np.int64)
