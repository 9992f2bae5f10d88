"""The calls of the router actor that every request needs, packed: for the direct line and for Ray alike.

msgspec knows the types, so that packing costs a fifth of pickle's time and unpacking runs nobody's code.
Clients and the actor are of one version: fields are not told apart by age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, get_type_hints

import msgspec
import numpy as np

from router.candidates import PackedCandidates
from router.status import PoolView
from sightline_types import Decision, DecisionId, DegradeReason, PushReply, RouteQuery, WorkerId, WorkerPush

__all__ = ["CALLS", "BadCall", "HotCall", "Outcome", "Refusal", "StalePool", "Undecided", "unpack_call"]


class BadCall(Exception):
    """A call that is none of `CALLS`, or whose body cannot be read."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """No decision was made; the request goes where the pinned router sends it."""

    reason: DegradeReason


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request must not be served as it is: the pool is full (429), or it is pinned to a worker that
    is not here (404)."""

    message: str
    status: Literal[404, 429]
    retry_after_s: int = 1


@dataclass(frozen=True, slots=True)
class StalePool:
    """The query lacks the keys of a worker that joined since: ask again with `pool`'s specs."""

    pool: PoolView


#: Of one query.
Outcome = Decision | Undecided | StalePool | Refusal


def _plain(value: Any) -> Any:
    """Scores are computed in numpy, and some of its numbers are kept."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is nothing that a call carries")


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


class HotCall:
    """One method of the actor. args: the types of its arguments."""

    def __init__(self, number: int, method: str, args: Any, result: Any) -> None:
        self.number = number
        self.method = method
        self._args = msgspec.msgpack.Decoder(args)
        self._result = msgspec.msgpack.Decoder(result)

    def pack(self, args: tuple[Any, ...]) -> bytes:
        """Raises:
        BadCall: the arguments are of other types.
        """
        return self._write(args)

    def unpack(self, body: bytes) -> tuple[Any, ...]:
        """The arguments.

        Raises:
            BadCall: they are of other types, or not msgpack at all.
        """
        args: tuple[Any, ...] = self._read(self._args, body)
        return args

    def pack_result(self, result: Any) -> bytes:
        return self._write(result)

    def unpack_result(self, body: bytes) -> Any:
        """What the method returned.

        Raises:
            BadCall: it is of another type.
        """
        return self._read(self._result, body)

    def _write(self, value: Any) -> bytes:
        try:
            return _encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadCall(f"{self.method}: {error}") from error

    def _read(self, decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise BadCall(f"{self.method}: {error}") from error


_TYPES = {**get_type_hints(Decision), "candidates": PackedCandidates}
_CANDIDATES = list(_TYPES).index("candidates")
#: A decision on its way: its candidates stay columns.
_PackedDecision = msgspec.defstruct("_PackedDecision", list(_TYPES.items()), array_like=True)
_fields_of = attrgetter(*_TYPES)


def _pack_decision(decision: Decision) -> msgspec.Struct:
    values = list(_fields_of(decision))
    values[_CANDIDATES] = values[_CANDIDATES].pack()
    return _PackedDecision(*values)


def _unpack_decision(packed: msgspec.Struct) -> Decision:
    values = list(msgspec.structs.astuple(packed))
    values[_CANDIDATES] = values[_CANDIDATES].unpack()
    return Decision(*values)


class DecideCall(HotCall):
    """Its result is of several types, each told by its number."""

    _KINDS: tuple[type[Outcome], ...] = (Decision, Undecided, StalePool, Refusal)
    _DECISION = 0

    def __init__(self, number: int) -> None:
        super().__init__(number, "decide_many", tuple[list[RouteQuery]], list[tuple[int, msgspec.Raw]])
        self._numbers = {kind: number for number, kind in enumerate(self._KINDS)}
        types = (_PackedDecision, *self._KINDS[1:])
        self._decoders = [msgspec.msgpack.Decoder(kind) for kind in types]

    def pack_result(self, result: Sequence[Outcome]) -> bytes:
        return self._write([self._pack_outcome(outcome) for outcome in result])

    def _pack_outcome(self, outcome: Outcome) -> tuple[int, Any]:
        packed = _pack_decision(outcome) if isinstance(outcome, Decision) else outcome
        return self._numbers[type(outcome)], packed

    def unpack_result(self, body: bytes) -> list[Outcome]:
        return [self._unpack_outcome(number, raw) for number, raw in super().unpack_result(body)]

    def _unpack_outcome(self, number: int, raw: msgspec.Raw) -> Outcome:
        outcome = self._read(self._decoders[number], raw)
        return _unpack_decision(outcome) if number == self._DECISION else outcome


_HOT = (
    DecideCall(0),
    HotCall(1, "push", tuple[WorkerPush], PushReply),
    HotCall(2, "cancel", tuple[list[DecisionId]], None),
    HotCall(3, "renew", tuple[list[DecisionId]], None),
    HotCall(4, "rebook", tuple[DecisionId, WorkerId], None),
)
#: By the method's name.
CALLS = {call.method: call for call in _HOT}


def unpack_call(number: int, body: bytes) -> tuple[HotCall, tuple[Any, ...]]:
    """What is called, and with which arguments.

    Raises:
        BadCall: there is no such call, or its arguments are of other types.
    """
    if not 0 <= number < len(_HOT):
        raise BadCall(f"there is no call {number}")
    return _HOT[number], _HOT[number].unpack(body)
