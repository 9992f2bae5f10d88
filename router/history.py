"""What changed lately in one worker's cache: why a prediction may have come out otherwise.

A prediction is made at decision time; until the engine looks, blocks may be evicted, and blocks of other
requests may come. Only a difference that no change in between explains speaks against a prediction.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from router.index import KeyArray
from sightline_types import Tier, TierDelta

__all__ = ["RecentChanges"]

#: Keys remembered per worker (8 bytes each). Beyond them a difference cannot be explained away or held.
_MAX_KEYS = 32_768
_GPU = Tier().medium


@dataclass(frozen=True, slots=True)
class _Change:
    seq: int
    stored: bytes
    removed: bytes

    @property
    def num_keys(self) -> int:
        return (len(self.stored) + len(self.removed)) // 8


@dataclass(slots=True)
class RecentChanges:
    """floor_seq: changes up to it are not known."""

    floor_seq: int
    _changes: deque[_Change] = field(default_factory=deque)
    _num_keys: int = 0

    def note(self, seq: int, deltas: tuple[TierDelta, ...]) -> None:
        """A message was applied."""
        for delta in deltas:
            if delta.tier.medium == _GPU and (delta.stored or delta.removed):
                self._changes.append(_Change(seq, delta.stored, delta.removed))
                self._num_keys += self._changes[-1].num_keys
        while self._num_keys > _MAX_KEYS:
            gone = self._changes.popleft()
            self._num_keys -= gone.num_keys
            self.floor_seq = gone.seq

    def may_explain(self, since_seq: int, keys: KeyArray, predicted: int, reported: int) -> bool:
        """Whether a figure that differs from the prediction may come from changes after `since_seq`.

        keys: of the request's blocks. predicted, reported: leading blocks; where the prediction was a
        range, its nearer end. Fewer are explained by the removal of a predicted block, more by the
        arrival of a block beyond: the request does not store what it finds.
        """
        if since_seq < self.floor_seq:
            return True
        later = [change for change in self._changes if change.seq > since_seq]
        if reported < predicted:
            return _touches(keys[:predicted], [change.removed for change in later])
        return _touches(keys[predicted:reported], [change.stored for change in later])


def _touches(keys: KeyArray, changed: list[bytes]) -> bool:
    packed = np.frombuffer(b"".join(changed), dtype="<u8")
    return bool(np.isin(keys, packed).any())
