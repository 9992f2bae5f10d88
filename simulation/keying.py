"""From a turn to what the router is asked and what the engine is given, with the router's own key code.

Tokens are made up: each text has a run of numbers of its own, so that equal prefixes have equal tokens and
nothing else has. Pictures are runs of one placeholder with an identity, as in the prompt of a Qwen-VL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router import block_keys
from sightline_types import (
    DecisionId,
    KeyedView,
    KeySpec,
    MediaId,
    MediaSpan,
    RouteQuery,
    TokenView,
    WorkerId,
)
from simulation.prompts import Part, Picture, Text, Turn, make_id
from simulation.requests import SimulatedMedia, SimulatedRequest

__all__ = ["LAYOUT", "KeyedTurn", "key_turn"]

#: Fingerprint that simulated views and workers agree on.
LAYOUT = "simulated"

_PLACEHOLDER = 151_655
_TEXT_BITS = 24  # tokens of one text: 16 M


@dataclass(frozen=True, slots=True)
class KeyedTurn:
    """A turn, keyed. view: of the prompt. keys: of prompt and output, shape (blocks,), uint64.

    tie_key: settles equal costs, as the ingress makes it.
    """

    prompt_tokens: int
    output_tokens: int
    view: KeyedView
    keys: npt.NDArray[np.uint64]
    spans: tuple[MediaSpan, ...]
    tie_key: int

    def query(self, decision_id: DecisionId, spec: KeySpec, exclude: tuple[WorkerId, ...] = ()) -> RouteQuery:
        spans = self.spans
        return RouteQuery(
            decision_id=decision_id,
            views={spec: self.view},
            num_tokens=self.prompt_tokens,
            media_tokens=sum(span.length for span in spans),
            layout=LAYOUT if spans else None,
            first_media_offset=spans[0].offset if spans else None,
            tie_key=self.tie_key,
            exclude=exclude,
            expected_output_tokens=self.output_tokens,
            spans=spans,
        )

    def request(self, request_id: str) -> SimulatedRequest:
        media = tuple(
            SimulatedMedia(span.offset, span.length, span.media_id.value, span.length) for span in self.spans
        )
        return SimulatedRequest(request_id, self.prompt_tokens, self.output_tokens, self.keys, media)


def key_turn(turn: Turn, spec: KeySpec, first: Turn | None = None) -> KeyedTurn:
    """Key prompt and answer in one chain, and tell the prompt's part of it.

    first: the session's first turn, whose text is the tie key of a turn without pictures.
    """
    n = turn.prompt_tokens
    answer = Text(turn.output_id, turn.output_tokens)
    tokens = np.concatenate([_tokens(part) for part in (*turn.parts, answer)])
    spans = _spans(turn.parts)
    keyed = block_keys(TokenView(tokens, spans, len(tokens)), spec)
    num_blocks, touched = n // spec.block_size, keyed.media_block_array()
    view = KeyedView(
        keys=keyed.keys[: 8 * num_blocks],
        media_blocks=touched[touched < num_blocks].tobytes(),
        media_ends=keyed.media_ends,
    )
    return KeyedTurn(n, turn.output_tokens, view, keyed.key_array(), spans, _tie_key(spans, first or turn))


def _tie_key(spans: tuple[MediaSpan, ...], first: Turn) -> int:
    if spans:
        return spans[0].media_id.value
    return make_id(*(part.text_id for part in first.parts if isinstance(part, Text)))


def _tokens(part: Part) -> npt.NDArray[np.int64]:
    if isinstance(part, Picture):
        return np.full(part.tokens, _PLACEHOLDER, dtype=np.int64)
    first = (part.text_id & ((1 << (63 - _TEXT_BITS)) - 1)) << _TEXT_BITS
    return np.arange(first, first + part.tokens, dtype=np.int64)


def _spans(parts: tuple[Part, ...]) -> tuple[MediaSpan, ...]:
    spans, at = [], 0
    for part in parts:
        if isinstance(part, Picture):
            spans.append(MediaSpan(at, part.tokens, MediaId(part.media_id)))
        at += part.tokens
    return tuple(spans)
