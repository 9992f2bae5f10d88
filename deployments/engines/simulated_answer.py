"""What a simulated engine says: words of the model's own vocabulary, the same for the same prompt.

The words are tokens that stand for one whole word with the space before it, and that their text is
tokenized to again, so that an answer which comes back in the next turn is the very tokens that were
generated. All of an answer is known before its first token: where a stop string cuts it, too.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from deployments.protocol import Sampling

__all__ = ["Answer", "Words", "answer"]

#: Enough for variety; each is tokenized once at the start.
MAX_WORDS = 512
_LETTERS = frozenset(string.ascii_letters)
#: A space as byte-level BPE writes it, and as SentencePiece does.
_SPACES = ("\u0120", "\u2581")
_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Words:
    """token_ids: shape (n,), int64, n at least 1. texts: of each, with the space before it."""

    token_ids: npt.NDArray[np.int64]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Words:
        """Of the vocabulary, in the order of its ids.

        Raises:
            ValueError: it has no token of plain letters.
        """
        vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        found = list(_some(_round_trips(tokenizer, _spaced(vocabulary)))) or list(_some(_plain(vocabulary)))
        if not found:
            raise ValueError("the model's vocabulary has no word that a simulated engine could say")
        return cls(np.array([token for token, _ in found], dtype=np.int64), tuple(text for _, text in found))


def _spaced(vocabulary: Iterable[tuple[str, int]]) -> Iterator[tuple[int, str]]:
    for token, token_id in vocabulary:
        if token[:1] in _SPACES and len(token) > 2 and _LETTERS.issuperset(token[1:]):
            yield token_id, " " + token[1:]


def _round_trips(
    tokenizer: PreTrainedTokenizerBase, words: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    """Those that are one token between other words, too."""
    for token_id, text in words:
        if tokenizer.encode(text + text, add_special_tokens=False) == [token_id, token_id]:
            yield token_id, text


def _plain(vocabulary: Iterable[tuple[str, int]]) -> Iterator[tuple[int, str]]:
    for token, token_id in vocabulary:
        if token and _LETTERS.issuperset(token):
            yield token_id, token


def _some(words: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    return (word for word, _ in zip(words, range(MAX_WORDS), strict=False))


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer. Token i's text is `text[ends[i - 1]:ends[i]]`; what a stop cut off is in none.

    token_ids: shape (n,), int64.
    """

    token_ids: npt.NDArray[np.int64]
    text: str
    ends: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def part(self, start: int, end: int) -> str:
        """The text of the tokens [start, end)."""
        return self.text[self.ends[start - 1] if start else 0 : self.ends[end - 1]] if end > start else ""


def answer(words: Words, seed: int, sampling: Sampling, *, room: int, default_tokens: int) -> Answer:
    """What is said to a prompt of hash `seed`, 64 bits.

    room: tokens that the model's length leaves, at least 1. default_tokens: where the request names no
    limit: the model ends by itself then, unless it is told to ignore that.
    """
    limit, finish_reason = _limit(sampling, room, default_tokens)
    places = _random(seed, limit) % np.uint64(len(words.texts))
    texts = [words.texts[place] for place in places.tolist()]
    ends = np.cumsum([len(text) for text in texts])
    whole = Answer(words.token_ids[places], "".join(texts), tuple(ends.tolist()), finish_reason)
    stops = [*_token_stops(whole, sampling), *_text_stops(whole, sampling)]
    return _cut(whole, min(stops, key=lambda stop: stop.token)) if stops else whole


def _limit(sampling: Sampling, room: int, default_tokens: int) -> tuple[int, str]:
    if sampling.max_tokens is not None:
        return min(sampling.max_tokens, room), "length"
    if sampling.ignore_eos:
        return room, "length"
    wanted = max(default_tokens, sampling.min_tokens)
    return (wanted, "stop") if wanted < room else (room, "length")


def _random(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """The first `count` values of splitmix64."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class _Stop:
    """token: the last one that is generated. length: of the text that is left."""

    token: int
    length: int
    reason: int | str


def _token_stops(whole: Answer, sampling: Sampling) -> Iterator[_Stop]:
    if not sampling.stop_token_ids:
        return
    hits = np.flatnonzero(np.isin(whole.token_ids, sampling.stop_token_ids))
    for token in hits[hits >= sampling.min_tokens][:1].tolist():
        kept = token + 1 if sampling.include_stop_str_in_output else token
        yield _Stop(token, len(whole.part(0, kept)), int(whole.token_ids[token]))


def _text_stops(whole: Answer, sampling: Sampling) -> Iterator[_Stop]:
    """The first of each stop string that ends behind the tokens that must be said (vLLM looks from there)."""
    said = len(whole.part(0, min(sampling.min_tokens, len(whole))))
    for stop in sampling.stop:
        begin = whole.text.find(stop, max(0, said - len(stop) + 1))
        if begin < 0:
            continue
        end = begin + len(stop)
        token = int(np.searchsorted(whole.ends, end))
        yield _Stop(token, end if sampling.include_stop_str_in_output else begin, stop)


def _cut(whole: Answer, stop: _Stop) -> Answer:
    kept = stop.token + 1
    ends = tuple(min(end, stop.length) for end in whole.ends[:kept])
    return Answer(whole.token_ids[:kept], whole.text[: stop.length], ends, "stop", stop.reason)
