"""What an engine was given under its clients' uuids: one that comes with another picture is noticed."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

import xxhash
from ray.serve.metrics import Counter

from deployments.protocol import EngineMedia
from deployments.transport import Payload, part
from sightline_types import ImageSize, MediaId

__all__ = ["UuidLedger"]

log = logging.getLogger("sightline.deployments")

_ENTRIES = 65536


@dataclass(frozen=True, slots=True)
class _Given:
    size: ImageSize | None
    digest: int


class UuidLedger:
    """One per engine replica. An engine trusts a uuid over the pixels (vLLM 0.32): the first picture that
    came with it answers for all later ones, and predictions about these would be held against it.

    conflicts: items that came with another picture than their uuid had before. Prometheus:
        `ray_sightline_uuid_conflicts`.
    """

    def __init__(self) -> None:
        self._given: OrderedDict[MediaId, _Given] = OrderedDict()
        self._counter = Counter(
            "sightline_uuid_conflicts",
            description="Media whose client uuid had come with another picture before.",
        )
        self.conflicts = 0

    def note(self, media: tuple[EngineMedia, ...], payload: Payload) -> bool:
        """Remember the pictures that came with uuids; False where one is not what was foreseen of it."""
        are_as_foreseen = [self._note(item, payload) for item in media if item.is_named]
        return all(are_as_foreseen)

    def _note(self, item: EngineMedia, payload: Payload) -> bool:
        known = self._given.get(item.media_id)
        if item.form == "held":
            return known is not None and known.size == item.size
        now = _Given(item.size, xxhash.xxh3_64_intdigest(part(payload, item)))
        if known is None:
            self._given[item.media_id] = now
            if len(self._given) > _ENTRIES:
                self._given.popitem(last=False)
            return True
        if known.digest != now.digest:
            self.conflicts += 1
            self._counter.inc(1)
            log.warning("media %s: a client's uuid came with another picture than before", item.media_id)
        return known == now
