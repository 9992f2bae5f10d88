"""What a simulated engine says of its KV cache, with the contents of vLLM's events.

Token ids and media extras are not here: who gave the engine its requests knows them (`Stored.request_id`,
`Stored.first_block`), and adds them where a wire form is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["CPU", "GPU", "Cleared", "Event", "Removed", "Stored"]

GPU = "GPU"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one request are full and findable from now on (one `BlockStored`).

    first_block: of the request, 0-based. keys: shape (N,), uint64. parent: the key before the first one.
    A key that another block holds already is stored once more, and will be removed once more.
    On a lower tier (`medium` "CPU") the block is named by its key alone: `request_id` is empty, `first_block`
    0 and `parent` None.
    """

    request_id: str
    first_block: int
    keys: npt.NDArray[np.uint64]
    parent: int | None
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks were given to somebody else, in this order (vLLM: one `BlockRemoved` a key)."""

    keys: tuple[int, ...]
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every block of every medium is forgotten (`AllBlocksCleared`)."""


Event = Stored | Removed | Cleared
