"""The shared vocabulary: identities as engines spell them, workers as logs spell them."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sightline_types import MediaId, WorkerId


@given(st.integers(0, 2**64 - 1))
def test_an_identity_survives_the_engine(value: int) -> None:
    media_id = MediaId(value)
    assert len(media_id.engine_uuid) == 64
    assert MediaId.from_engine(media_id.engine_uuid) == media_id
    assert MediaId.from_hex(media_id.hex) == media_id


@pytest.mark.parametrize(
    "identifier", ["my-uuid", "f" * 64, "0x" + "1" * 14 + "0" * 48, "1_" * 8 + "0" * 48, ""]
)
def test_any_other_identifier_is_hashed(identifier: str) -> None:
    assert MediaId.from_engine(identifier).value == xxhash.xxh3_64_intdigest(identifier.encode())


@pytest.mark.parametrize("value", [-1, 2**64])
def test_an_identity_has_64_bits(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        MediaId(value)


def test_random_identities_differ() -> None:
    assert len({MediaId.random() for _ in range(100)}) == 100


def test_a_worker_is_read_back_from_its_name() -> None:
    for worker in (WorkerId("abc"), WorkerId("abc", 3)):
        assert WorkerId.parse(str(worker)) == worker
