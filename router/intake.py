"""What a worker's messages must be like to be believed. One that sends garbage is distrusted, by name.

Distrusted, a worker holds nothing in the index and goes on to serve: its requests count, its blocks do
not. Trust returns with a new epoch, which is a new start of the relay or of its view.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from router.events import MAX_MEDIUM_LENGTH, MAX_TIERS
from sightline_types import TierDelta, WorkerId, WorkerPush

__all__ = ["Intake", "is_older", "malformed"]

#: Blocks in one tier of one message: 512 MiB of keys.
MAX_KEYS = 1 << 26
#: A table may name so many times the blocks that the worker says it has room for.
CAPACITY_FACTOR = 4
#: A relay counts its epochs upwards from a random number of 62 bits.
EPOCHS_OF_A_RELAY = 1 << 20
#: Workers that left and are remembered, so that a late message does not bring them back.
MAX_DEPARTED = 1024
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Distrust:
    epoch: int
    why: str


@dataclass(slots=True)
class Intake:
    """Which workers are distrusted, and why; and which have left for good."""

    num_malformed: int = 0
    _departed: dict[WorkerId, int] = field(default_factory=dict)
    _distrusted: dict[WorkerId, _Distrust] = field(default_factory=dict)

    def screen(self, msg: WorkerPush) -> WorkerPush:
        """The message as far as it is believed: without its blocks where the worker is distrusted."""
        known = self._distrusted.get(msg.worker)
        if known is not None and msg.table and _is_later(msg.epoch, known.epoch):
            del self._distrusted[msg.worker]
            known = None
        why = malformed(msg)
        if why is not None:
            self.num_malformed += 1
            if known is None or _is_later(msg.epoch, known.epoch):
                known = self._distrusted[msg.worker] = _Distrust(msg.epoch, why)
        return msg if known is None else replace(msg, deltas=())

    def has_left(self, msg: WorkerPush) -> bool:
        """Whether the message is of a worker that said it was leaving; note it where this one says so."""
        epoch = self._departed.get(msg.worker)
        left = epoch is not None and (epoch == msg.epoch or is_older(msg.epoch, epoch))
        if msg.leaving:
            self._departed[msg.worker] = msg.epoch
            if len(self._departed) > MAX_DEPARTED:
                self._departed.pop(next(iter(self._departed)))
        return left

    def why(self, worker: WorkerId) -> str:
        """Why a worker is distrusted; empty where it is not."""
        known = self._distrusted.get(worker)
        return known.why if known is not None else ""

    def forget(self, worker: WorkerId) -> None:
        self._distrusted.pop(worker, None)


def is_older(epoch: int, than: int) -> bool:
    """Whether `epoch` is an earlier one of the same relay's life: a message of it was late."""
    return 0 < than - epoch < EPOCHS_OF_A_RELAY


def _is_later(epoch: int, than: int) -> bool:
    """Whether `epoch` began after: of another life of the relay, or later in the same."""
    return epoch != than and not is_older(epoch, than)


def malformed(msg: WorkerPush) -> str | None:
    """What is wrong with a message's blocks, in words; None where nothing is."""
    if len(msg.deltas) > MAX_TIERS:
        return f"{len(msg.deltas)} tiers in one message; at most {MAX_TIERS}"
    for delta in msg.deltas:
        wrong = _malformed_delta(delta)
        if wrong is not None:
            return wrong
    contract = msg.contract
    if msg.table and contract is not None and contract.kv_capacity_tokens > 0 and contract.block_size > 0:
        return _overfull(msg, CAPACITY_FACTOR * contract.kv_capacity_tokens // contract.block_size)
    return None


def _malformed_delta(delta: TierDelta) -> str | None:
    group, medium = delta.tier
    if not 0 <= group < MAX_TIERS or not 0 < len(medium) <= MAX_MEDIUM_LENGTH:
        return f"tier {group}/{medium[:MAX_MEDIUM_LENGTH]!r} is none"
    for keys in (delta.stored, delta.removed):
        if len(keys) % _KEY_BYTES:
            return f"{len(keys)} bytes of keys; a key has {_KEY_BYTES}"
        if len(keys) > MAX_KEYS * _KEY_BYTES:
            return f"{len(keys) // _KEY_BYTES} keys in one tier; at most {MAX_KEYS}"
        if (np.frombuffer(keys, "<u8") == 0).any():
            return "0 is never a key"
    return None


def _overfull(msg: WorkerPush, most: int) -> str | None:
    for delta in msg.deltas:
        num_keys = len(delta.stored) // _KEY_BYTES
        if delta.tier.medium == "GPU" and num_keys > most:
            return f"{num_keys} blocks held on the GPU, where there is room for {most // CAPACITY_FACTOR}"
    return None
