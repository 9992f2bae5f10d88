"""A look at the fleet every now and then: each worker's load, and where each picture lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sightline_types import KeySpec, WorkerId
from simulation.keying import key_turn
from simulation.prompts import Session
from simulation.replica import Replica

__all__ = ["LoadSample", "PictureHome", "Samples"]

#: Pictures that are followed at most: the first ones of the run.
_MAX_PICTURES = 120


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One worker at one time. kv_usage: 0 to 1. alive: False once it is dead."""

    at_ms: float
    worker: str
    running: int
    waiting: int
    kv_usage: float
    alive: bool = True


@dataclass(slots=True)
class PictureHome:
    """media_id: 16 hex digits. key: of the block in which it first ends, which is there only with it."""

    media_id: str
    key: int
    looks: int = 0


class Samples:
    """loads: in the order of time. homes: by picture, how many looks found it at each worker."""

    def __init__(self, interval_ms: float, sessions: Sequence[Session], spec: KeySpec) -> None:
        self.interval_ms = interval_ms
        self.num_looks = 0
        self.loads: list[LoadSample] = []
        self._keys = dict(_followed(sessions, spec))
        self.homes: dict[str, dict[str, int]] = {picture: {} for picture in self._keys}

    def look(self, now_ms: float, replicas: Mapping[WorkerId, Replica]) -> None:
        self.num_looks += 1
        for worker, replica in replicas.items():
            load, alive = replica.engine.load(), not replica.is_dead
            self.loads.append(
                LoadSample(
                    now_ms,
                    str(worker),
                    load.num_running,
                    load.num_waiting,
                    load.kv_usage,
                    not replica.is_dead,
                )
            )
            if alive:
                self._look_for_pictures(replica)

    def _look_for_pictures(self, replica: Replica) -> None:
        held, name = replica.uplink.held, str(replica.worker)
        for picture, key in self._keys.items():
            if key in held:
                at = self.homes[picture]
                at[name] = at.get(name, 0) + 1


def _followed(sessions: Iterable[Session], spec: KeySpec) -> Iterable[tuple[str, int]]:
    """First pictures of prompts, and the last block that each fills, in the order in which they come."""
    known: set[int] = set()
    for session in sorted(sessions, key=lambda session: session.start_ms):
        for turn in session.turns[:1]:
            pictures = turn.pictures[:1]
            if not pictures or pictures[0].media_id in known:
                continue
            known.add(pictures[0].media_id)
            keyed = key_turn(turn, spec)
            block = keyed.spans[0].end // spec.block_size - 1
            if block >= keyed.spans[0].offset // spec.block_size:
                yield f"{pictures[0].media_id:016x}", int(keyed.keys[block])
            if len(known) >= _MAX_PICTURES:
                return
