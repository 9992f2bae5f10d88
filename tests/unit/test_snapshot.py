"""The view on disk: what is written comes back, and nothing else ever does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.snapshot import SnapshotRefused, WorkerTable, read_snapshot, write_snapshot
from sightline_types import KeyScheme, KvGroup, LayoutContract, Tier, TierDelta, WorkerContract, WorkerId

CONTRACT = WorkerContract(
    "vllm",
    "0.32.0",
    16,
    KeyScheme.VLLM,
    "m",
    4096,
    kv_groups=(KvGroup("full_attention", index=1), KvGroup("mamba", index=0)),
    layouts=(LayoutContract("qwen3_vl", "f", True),),
    detail={"note": [1, 2]},
)


def table(name: str, *keys: int, group: int = 0) -> WorkerTable:
    packed = np.array(keys, "<u8").tobytes()
    return WorkerTable(WorkerId(name, 1), CONTRACT, 1 << 61, 7, (TierDelta(Tier(group), packed),))


def test_what_was_written_is_read(tmp_path):
    tables = [table("a", 1, 2, 3), table("b"), table("c", 2**64 - 1, group=1)]
    size = write_snapshot(tmp_path / "deep" / "view", tables)
    assert size == (tmp_path / "deep" / "view").stat().st_size
    assert read_snapshot(tmp_path / "deep" / "view") == {t.worker: t for t in tables}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["view"]


def test_no_file_is_an_empty_snapshot(tmp_path):
    assert read_snapshot(tmp_path / "none") == {}


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_cut_or_changed_file_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("s") / "view"
    write_snapshot(path, [table("a", 1, 2, 3)])
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    path.write_bytes(data.draw(st.sampled_from([whole[:place], changed, whole + b"\0"])))
    with pytest.raises(SnapshotRefused, match=str(path)):
        read_snapshot(path)


def test_a_snapshot_of_other_keys_is_refused(tmp_path, monkeypatch):
    write_snapshot(tmp_path / "view", [table("a", 1)])
    monkeypatch.setattr("router.snapshot._key_digest", lambda: "other")
    with pytest.raises(SnapshotRefused, match="another version"):
        read_snapshot(tmp_path / "view")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "view"
    write_snapshot(path, [table("a", 1)])
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_snapshot(path, [table("b", 2)])
    assert list(read_snapshot(path)) == [table("a").worker]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_table_belongs_to_one_epoch(tmp_path):
    write_snapshot(tmp_path / "view", [replace(table("a", 1), epoch=3)])
    assert read_snapshot(tmp_path / "view")[WorkerId("a", 1)].epoch == 3
