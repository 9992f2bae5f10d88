"""Prompts of a wanted length, of common English words: mostly one token each, in any vocabulary."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Texts", "TokenRate"]

_WORDS = """
the a of to and in is it are was be has have with on at by for from this that these those what which who
where when how why one two three four five six seven eight nine ten no not yes all some any more most very
can may will would image images picture pictures photo video frame color red green blue yellow orange
purple black white brown describe show shows shown see look count compare answer question please tell
write list name explain same other another left right top bottom center middle corner above below near
behind front between inside outside around large small long short wide tall round square circle triangle
line dot shape pattern border edge light dark bright cat dog bird fish horse tree leaf flower grass river
lake sea hill mountain sky cloud sun moon star rain snow house door window roof wall road street bridge car
bus train boat ship plane wheel table chair lamp book page letter word number map clock bottle cup plate
bread apple water coffee tea milk stone wood glass person man woman child hand face eye hair hat coat
""".split()


@dataclass(frozen=True, slots=True)
class TokenRate:
    """How an endpoint counts: a prompt of n words has `overhead + n * per_word` tokens (measured)."""

    per_word: float = 1.0
    overhead: float = 0.0
    is_measured: bool = False

    @classmethod
    def between(cls, short: tuple[int, int], long: tuple[int, int]) -> TokenRate:
        """From two prompts, each (words, tokens)."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        if per_word <= 0:
            return cls()
        return cls(per_word, max(0.0, short[1] - short[0] * per_word), True)

    def words(self, tokens: int, *, is_whole: bool = True) -> int:
        """Words for so many tokens; `is_whole`: of the whole prompt, the template's tokens included."""
        return max(1, round((tokens - (self.overhead if is_whole else 0)) / self.per_word))


class Texts:
    """Random words, the same for the same seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def words(self, count: int) -> bytes:
        """So many words; safe inside a JSON string."""
        return " ".join(self._random.choices(_WORDS, k=count)).encode()

    def every_word(self) -> bytes:
        """Each word once, in random order: on average as many tokens a word as in a long text."""
        return " ".join(self._random.sample(_WORDS, len(_WORDS))).encode()

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)
