"""What a simulated engine is given: lengths and keys, never tokens.

The output of a request is settled beforehand, so the keys of all its blocks are known when it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["SimulatedMedia", "SimulatedRequest"]


@dataclass(frozen=True, slots=True)
class SimulatedMedia:
    """One media item: prompt positions [offset, offset + length) of the expanded prompt.

    media_id: 64 bits; equal ids share one entry of the encoder cache.
    encoder_tokens: what the encoder makes of it, counted against its budget and its cache; may be less
        than `length` where a span holds text as well (timestamps, separators). Where these lie is not known:
        a chunk that ends within a span's leading text has the item encoded one chunk earlier than vLLM would.
    """

    offset: int
    length: int
    media_id: int
    encoder_tokens: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request.

    prompt_tokens: of the expanded prompt. output_tokens: made unless the request is aborted or reaches the
        engine's `max_model_len`.
    keys: shape (N,), uint64, N at least (prompt_tokens + output_tokens - 1) // block_size: the chained key of
        every full block of prompt and output. The KV of the last token is never computed.
    media: by offset, not overlapping.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    keys: npt.NDArray[np.uint64]
    media: tuple[SimulatedMedia, ...] = ()
