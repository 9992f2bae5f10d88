"""Garbage is not believed and not fatal, whether it comes from an engine or from a relay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from router import intake, trust
from router.intake import Intake, malformed
from router.trust import StreamTrust
from sightline_types import KeyScheme, Tier, TierDelta, WorkerContract, WorkerId, WorkerPush

A = WorkerId("a")
CONTRACT = WorkerContract("vllm", "0", 4, KeyScheme.VLLM, "m", 99, kv_capacity_tokens=40)


def packed(*keys: int) -> bytes:
    return np.array(keys, "<u8").tobytes()


GOOD = TierDelta(Tier(), packed(1, 2), packed(3))


def push(*deltas: TierDelta, epoch: int = 1, table: bool = False) -> WorkerPush:
    return WorkerPush(A, epoch, 0, deltas, table=table, contract=CONTRACT if table else None)


def test_a_sound_message_passes_as_it_is():
    message = push(GOOD, TierDelta(Tier(1, "CPU"), packed(9)))
    assert malformed(message) is None
    assert Intake().screen(message) is message


@pytest.mark.parametrize(
    ("delta", "says"),
    [
        (TierDelta(Tier(), packed(1)[:-1]), "7 bytes of keys"),
        (TierDelta(Tier(), b"", b"x"), "1 bytes of keys"),
        (TierDelta(Tier(), packed(0)), "never a key"),
        (TierDelta(Tier(-1), packed(1)), "tier -1"),
        (TierDelta(Tier(0, "m" * 99), packed(1)), "is none"),
        (TierDelta(Tier(0, ""), packed(1)), "is none"),
    ],
)
def test_a_malformed_message_is_distrusted_with_the_value(delta, says):
    intake_ = Intake()
    assert says in (malformed(push(delta)) or "")
    assert intake_.screen(push(GOOD, delta)).deltas == ()
    assert says in intake_.why(A) and intake_.num_malformed == 1


def test_absurd_sizes_are_distrusted(monkeypatch):
    monkeypatch.setattr(intake, "MAX_KEYS", 2)
    assert "3 keys in one tier" in (malformed(push(TierDelta(Tier(), packed(1, 2, 3)))) or "")
    assert "65 tiers" in (malformed(push(*[GOOD] * 65)) or "")


def test_a_table_of_more_blocks_than_there_is_room_for_is_distrusted():
    fits, too_many = packed(*range(1, 41)), packed(*range(1, 42))
    assert malformed(push(TierDelta(Tier(), fits), table=True)) is None
    assert "room for 10" in (malformed(push(TierDelta(Tier(), too_many), table=True)) or "")
    assert malformed(push(TierDelta(Tier(0, "CPU"), too_many), table=True)) is None


def test_a_distrusted_worker_is_believed_again_from_a_new_epoch_on():
    intake_ = Intake()
    intake_.screen(push(TierDelta(Tier(), b"x")))
    assert intake_.screen(push(GOOD, table=True)).deltas == ()
    assert intake_.screen(push(GOOD, epoch=2)).deltas == ()
    assert intake_.screen(push(GOOD, epoch=2, table=True)).deltas == (GOOD,)
    assert intake_.why(A) == ""


def test_a_late_table_from_before_the_garbage_does_not_bring_trust_back():
    intake_ = Intake()
    intake_.screen(push(TierDelta(Tier(), b"x"), epoch=6))
    assert intake_.screen(push(GOOD, epoch=5, table=True)).deltas == ()
    assert intake_.why(A)


def test_a_worker_that_goes_on_with_garbage_is_distrusted_for_its_later_epoch():
    intake_ = Intake()
    for epoch in (5, 6):
        intake_.screen(push(TierDelta(Tier(), b"x"), epoch=epoch))
    assert intake_.screen(push(GOOD, epoch=6, table=True)).deltas == ()
    assert intake_.screen(push(GOOD, epoch=7, table=True)).deltas


def test_a_forgotten_worker_is_not_remembered_for_its_garbage():
    intake_ = Intake()
    intake_.screen(push(TierDelta(Tier(), b"x")))
    intake_.forget(A)
    assert intake_.screen(push(GOOD)) == push(GOOD)


def test_what_is_said_of_requests_counts_even_from_a_distrusted_worker():
    message = replace(push(TierDelta(Tier(), b"x")), leaving=True)
    assert Intake().screen(message) == replace(message, deltas=())


def test_a_stream_is_distrusted_after_some_garbage_and_trusted_after_enough_that_is_not():
    stream = StreamTrust()
    for _ in range(trust.GARBAGE_BATCHES - 1):
        stream.note_garbage("batch 4 cannot be read")
    assert stream.is_trusted
    stream.note_garbage("batch 9 cannot be read")
    assert stream.reason == "batch 9 cannot be read"
    returned = [stream.note_clean() for _ in range(trust.CLEAN_BATCHES)]
    assert returned == [False] * (trust.CLEAN_BATCHES - 1) + [True]
    assert stream.is_trusted


def test_garbage_now_and_then_is_forgiven():
    stream = StreamTrust()
    for _ in range(10):
        stream.note_garbage("a batch cannot be read")
        for _ in range(trust.CLEAN_BATCHES):
            stream.note_clean()
    assert stream.is_trusted
