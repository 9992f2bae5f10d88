"""The cache of encoder outputs: vLLM 0.32's `EncoderCacheManager`, entry for entry.

An entry that no request references any more stays until its place is needed; then the one that has been
unreferenced longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from simulation.requests import SimulatedMedia

__all__ = ["EncoderCache", "EncoderHolds"]

#: Indices of a request's items whose outputs it references.
EncoderHolds = set[int]


class EncoderCache:
    """`capacity` in encoder tokens."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = capacity
        self._freeable = capacity
        self._holders: dict[int, set[str]] = {}
        self._sizes: dict[int, int] = {}
        self._idle: OrderedDict[int, int] = OrderedDict()

    def check_integrity(self) -> None:
        """Raise AssertionError where the parts contradict each other (tests; slow)."""
        assert 0 <= self._free == self._capacity - sum(self._sizes.values())
        assert self._idle == {m: self._sizes[m] for m, holders in self._holders.items() if not holders}
        assert self._freeable == self._free + sum(self._idle.values())
        assert self._sizes.keys() == self._holders.keys()

    def holds(self, media_id: int) -> bool:
        return media_id in self._holders

    def hit(self, request_id: str, media: Sequence[SimulatedMedia], index: int, holds: EncoderHolds) -> bool:
        """Reference the item's output if it is there."""
        media_id = media[index].media_id
        holders = self._holders.get(media_id)
        if holders is None:
            return False
        if not holders:
            self._freeable -= self._idle.pop(media_id)
        holders.add(request_id)
        holds.add(index)
        return True

    def make_room(self, size: int, planned: int) -> bool:
        """Whether `size` tokens fit beside `planned` ones of the same step; evicts what must go for them."""
        wanted = size + planned
        if wanted <= self._free:
            return True
        if wanted > self._freeable:
            return False
        while wanted > self._free:
            media_id, freed = self._idle.popitem(last=False)
            del self._holders[media_id], self._sizes[media_id]
            self._free += freed
        return True

    def allocate(
        self, request_id: str, media: Sequence[SimulatedMedia], index: int, holds: EncoderHolds
    ) -> None:
        """The item is encoded in this step; `make_room` said yes."""
        item = media[index]
        self._holders.setdefault(item.media_id, set()).add(request_id)
        self._sizes.setdefault(item.media_id, item.encoder_tokens)
        holds.add(index)
        self._free -= item.encoder_tokens
        self._freeable -= item.encoder_tokens

    def release(
        self, request_id: str, media: Sequence[SimulatedMedia], index: int, holds: EncoderHolds
    ) -> None:
        """The request is past the item, or gone; its reference stays while it holds a like item elsewhere."""
        media_id = media[index].media_id
        holds.discard(index)
        holders = self._holders.get(media_id)
        if not holders or any(media[other].media_id == media_id for other in holds):
            return
        holders.discard(request_id)
        if not holders:
            self._idle[media_id] = self._sizes[media_id]
            self._freeable += self._sizes[media_id]

    def release_all(self, request_id: str, media: Sequence[SimulatedMedia], holds: EncoderHolds) -> None:
        for index in sorted(holds):
            self.release(request_id, media, index, holds)
