"""The router's view on disk, so that a restarted one knows something before its workers' tables come.

    8 bytes    magic and version
    4 bytes    length of the header, little-endian
    header     JSON: digest of what the keys depend on, workers (id, contract, epoch, sequence, tiers)
    body       the tiers' keys, one after the other: little-endian uint64
    8 bytes    xxh3_64 of all before

A table counts for its worker's epoch only: a worker that registers with another one has begun anew. The
file is replaced as a whole, so that there is always a whole one; what cannot be read is refused by name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from router.keys import RouterError, root_key
from sightline_types import KeyScheme, Tier, TierDelta, WorkerContract, WorkerId

__all__ = ["SnapshotRefused", "WorkerTable", "read_snapshot", "write_snapshot"]

MAGIC = b"SLSNAP\x00\x01"
_LENGTH_BYTES = 4
_CHECKSUM_BYTES = 8
_KEY_BYTES = 8


class SnapshotRefused(RouterError):
    """A file that is no snapshot, not a whole one, or one of other keys."""


@dataclass(frozen=True, slots=True)
class WorkerTable:
    """What one worker held at one message of one of its epochs."""

    worker: WorkerId
    contract: WorkerContract
    epoch: int
    applied_seq: int
    deltas: tuple[TierDelta, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A worker in the header. tiers: (group, medium, number of keys), in the body's order."""

    worker: WorkerId
    contract: WorkerContract
    epoch: int
    applied_seq: int
    tiers: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class _Header:
    keys: str
    workers: tuple[_Entry, ...]


def write_snapshot(path: Path, tables: Iterable[WorkerTable]) -> int:
    """Replace the file at `path`. Returns its size in bytes.

    Raises:
        OSError: it cannot be written; the old one stays.
    """
    tables = tuple(tables)
    header = msgspec.json.encode(_Header(_key_digest(), tuple(_entry(table) for table in tables)))
    parts = [MAGIC, len(header).to_bytes(_LENGTH_BYTES, "little"), header]
    parts += [delta.stored for table in tables for delta in table.deltas]
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        size = _write(handle, parts)
        os.replace(draft, path)
    except OSError:
        os.unlink(draft)
        raise
    return size


def _write(handle: int, parts: Sequence[bytes]) -> int:
    checksum = xxhash.xxh3_64()
    with os.fdopen(handle, "wb") as file:
        for part in parts:
            checksum.update(part)
            file.write(part)
        file.write(checksum.intdigest().to_bytes(_CHECKSUM_BYTES, "little"))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def read_snapshot(path: Path) -> dict[WorkerId, WorkerTable]:
    """The tables by worker; empty where there is no file.

    Raises:
        SnapshotRefused: it cannot be read, is cut off or changed, or its keys are others.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SnapshotRefused(f"{path}: {error}") from error
    header, body = _open(path, data)
    if header.keys != _key_digest():
        raise SnapshotRefused(f"{path}: made with block keys of another version")
    sizes = [count for entry in header.workers for _, _, count in entry.tiers]
    if min(sizes, default=0) < 0 or sum(sizes) * _KEY_BYTES != len(body):
        raise SnapshotRefused(f"{path}: {len(body)} bytes of keys; the header tells of {sum(sizes)} keys")
    return _tables(header, body)


def _open(path: Path, data: bytes) -> tuple[_Header, memoryview]:
    if data[: len(MAGIC)] != MAGIC:
        raise SnapshotRefused(f"{path}: not a snapshot of this version")
    content = memoryview(data)[:-_CHECKSUM_BYTES]
    if xxhash.xxh3_64_intdigest(content) != int.from_bytes(data[-_CHECKSUM_BYTES:], "little"):
        raise SnapshotRefused(f"{path}: cut off or changed: its checksum differs")
    begin = len(MAGIC) + _LENGTH_BYTES
    length = int.from_bytes(content[len(MAGIC) : begin], "little")
    try:
        header = msgspec.json.decode(content[begin : begin + length], type=_Header)
    except msgspec.MsgspecError as error:
        raise SnapshotRefused(f"{path}: {error}") from error
    return header, content[begin + length :]


def _tables(header: _Header, body: memoryview) -> dict[WorkerId, WorkerTable]:
    tables, at = {}, 0
    for entry in header.workers:
        deltas = []
        for group, medium, count in entry.tiers:
            end = at + count * _KEY_BYTES
            deltas.append(TierDelta(Tier(group, medium), bytes(body[at:end])))
            at = end
        tables[entry.worker] = WorkerTable(
            entry.worker, entry.contract, entry.epoch, entry.applied_seq, tuple(deltas)
        )
    return tables


def _entry(table: WorkerTable) -> _Entry:
    tiers = tuple((d.tier.group, d.tier.medium, len(d.stored) // _KEY_BYTES) for d in table.deltas)
    return _Entry(table.worker, table.contract, table.epoch, table.applied_seq, tiers)


def _key_digest() -> str:
    """Changes when the layout of block keys does."""
    return f"{root_key(KeyScheme.VLLM):016x}"
