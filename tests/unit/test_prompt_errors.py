"""The one exception tree, and how it travels."""

from __future__ import annotations

import pickle

import pytest

from processors import MediaTooLarge, MediaUnreachable, RequestError, UnsupportedMedia
from processors.network import AddressRefused


class Elsewhere(RequestError):
    """A subclass with a signature of its own, as other packages have."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}", status=503, type="server_error")


ERRORS = [
    RequestError("wrong", status=422, param="messages", code="why", type="odd"),
    MediaUnreachable("gone", status=404, param="p"),
    MediaTooLarge("big", param="p"),
    UnsupportedMedia("what", status=400),
    AddressRefused("host"),
    Elsewhere(3),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_whole(error: RequestError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.status, again.body()) == (str(error), error.status, error.body())


def test_the_body_has_openais_shape() -> None:
    assert RequestError("wrong", param="model", code="c").body() == {
        "error": {"message": "wrong", "type": "invalid_request_error", "param": "model", "code": "c"}
    }


def test_statuses_are_those_of_the_tree() -> None:
    assert [RequestError("x").status, MediaUnreachable("x").status] == [400, 400]
    assert [MediaTooLarge("x").status, UnsupportedMedia("x").status] == [413, 415]
