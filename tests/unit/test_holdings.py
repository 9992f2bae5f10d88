"""What is remembered of the pictures that an engine was given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.holdings import LEAST, MOST, Holdings
from deployments.protocol import EngineMedia
from deployments.shipment import Shipment
from sightline_types import MediaId, Modality, PreparedPrompt, TokenView, WorkerId

A, B = WorkerId("a"), WorkerId("b")
PROMPT = PreparedPrompt((1,), (), TokenView(np.zeros(1, dtype=np.int64), (), 1))


def picture(number: int) -> EngineMedia:
    return EngineMedia(Modality.IMAGE, MediaId(number), "file", 0, 3)


def shipment(*numbers: int, **changed: object) -> Shipment:
    media = tuple(replace(picture(number), **changed) for number in numbers)  # type: ignore[arg-type]
    return Shipment(media, b"png", True, PROMPT)


def is_left_out(holdings: Holdings, number: int, worker: WorkerId = A) -> bool:
    whole = shipment(number)
    sent = holdings.without_files(whole, worker)
    assert (sent is whole) or (sent.payload is None and sent.media[0].form == "held")
    return sent is not whole


def test_a_picture_is_left_out_for_the_worker_that_was_given_it_and_no_other() -> None:
    holdings = Holdings()
    assert not is_left_out(holdings, 1)
    holdings.note(A, (picture(1),))
    assert is_left_out(holdings, 1)
    assert not is_left_out(holdings, 1, B)
    assert not is_left_out(holdings, 2)


def test_what_a_worker_dropped_is_sent_again_and_less_is_expected_of_it() -> None:
    holdings = Holdings()
    for number in range(100):
        holdings.note(A, (picture(number),))
    holdings.forget(A, (picture(49),))
    assert [number for number in range(100) if is_left_out(holdings, number)] == list(range(50, 100))


def test_a_worker_that_left_is_forgotten() -> None:
    holdings = Holdings()
    holdings.note(A, (picture(1),))
    holdings.keep({B})
    assert not is_left_out(holdings, 1)


@pytest.mark.parametrize("changed", [{"is_named": True}, {"modality": Modality.VIDEO}, {"form": "held"}])
def test_what_a_client_named_and_what_is_no_picture_always_travels(changed: dict[str, object]) -> None:
    holdings = Holdings()
    whole = shipment(1, **changed)
    holdings.note(A, whole.media)
    assert holdings.without_files(whole, A) is whole


def test_a_file_that_was_not_as_foreseen_always_travels() -> None:
    holdings = Holdings()
    whole = replace(shipment(1), is_as_foreseen=False)
    holdings.note(A, whole.media)
    assert holdings.without_files(whole, A) is whole


@settings(deadline=None, max_examples=50)
@given(st.integers(LEAST, 60), st.lists(st.integers(0, 80), max_size=400))
def test_an_engine_that_keeps_few_is_rarely_asked_for_more(capacity: int, numbers: list[int]) -> None:
    """An engine that keeps the last `capacity` pictures: of those asked for, it soon has nearly all."""
    holdings, kept, misses = Holdings(), [], 0
    for number in numbers:
        if is_left_out(holdings, number) and number not in kept:
            misses += 1
            holdings.forget(A, (picture(number),))
        kept = [*(n for n in kept if n != number), number][-capacity:]
        holdings.note(A, (picture(number),))
    assert misses <= 2 + len(numbers) / 8


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    holdings = Holdings()
    for number in range(MOST + 10):
        holdings.note(A, (picture(number),))
    assert sum(is_left_out(holdings, number) for number in range(MOST + 10)) == MOST
