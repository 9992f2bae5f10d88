"""Which engine was given which picture: one that comes again goes there by its identity alone.

An engine with a processor cache (vLLM's `mm_processor_cache_gb`) looks at the identity first and leaves the
pixels of what it knows alone, so that the file need not travel, nor be decoded, once more. What it has
dropped meanwhile it says (`NotHeld`), and gets the file then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace

from deployments.protocol import EngineMedia
from deployments.shipment import Shipment
from sightline_types import MediaId, Modality, WorkerId

__all__ = ["Holdings"]

#: Pictures remembered of a worker at the most, and at the least after it said that it had dropped one.
MOST, LEAST = 4096, 1
#: After that, of so many pictures sent one more is remembered.
REGROWTH = 8


class _Held:
    """Of one worker: identities, those used last at the end, within `limit`."""

    def __init__(self) -> None:
        self.order: OrderedDict[MediaId, None] = OrderedDict()
        self.limit = float(MOST)

    def note(self, media_id: MediaId) -> None:
        if media_id not in self.order:
            self.limit = min(self.limit + 1 / REGROWTH, MOST)
        self.order[media_id] = None
        self.order.move_to_end(media_id)
        while len(self.order) > self.limit:
            self.order.popitem(last=False)

    def forget(self, media_ids: Collection[MediaId]) -> None:
        """The engine dropped one of these: it keeps no more than were used since."""
        used_since = 0
        for media_id in reversed(self.order):
            if media_id in media_ids:
                break
            used_since += 1
        self.limit = max(LEAST, min(self.limit, used_since))
        for media_id in media_ids:
            self.order.pop(media_id, None)
        while len(self.order) > self.limit:
            self.order.popitem(last=False)


class Holdings:
    """One per ingress replica. Workers that the pool no longer has are to be left out by `keep`."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Held] = {}

    def keep(self, workers: Collection[WorkerId]) -> None:
        for worker in self._workers.keys() - workers:
            del self._workers[worker]

    def without_files(self, shipment: Shipment, worker: WorkerId) -> Shipment:
        """The shipment by identities alone where `worker` was given all its pictures; else as it is."""
        held = self._workers.get(worker)
        if held is None or not shipment.media or not shipment.is_as_foreseen:
            return shipment
        if not all(_may_be_held(item) and item.media_id in held.order for item in shipment.media):
            return shipment
        media = tuple(replace(item, form="held", offset=0, length=0, shape=None) for item in shipment.media)
        return replace(shipment, media=media, payload=None)

    def note(self, worker: WorkerId, media: Sequence[EngineMedia]) -> None:
        """`worker` has begun to answer a request with these."""
        if media:
            held = self._workers.setdefault(worker, _Held())
            for item in media:
                if _may_be_held(item):
                    held.note(item.media_id)

    def forget(self, worker: WorkerId, media: Sequence[EngineMedia]) -> None:
        """`worker` said that it does not hold all of these."""
        if worker in self._workers:
            self._workers[worker].forget({item.media_id for item in media})


def _may_be_held(item: EngineMedia) -> bool:
    """Not what clients name themselves: the replica compares their files (`UuidLedger`)."""
    return item.modality is Modality.IMAGE and item.form != "held" and not item.is_named
