"""Strings that a tokenizer takes for one token each: where they let a text be cut, and who wrote them.

A fast tokenizer first splits a text at its added tokens, leftmost and longest first, and then treats what
lies between them piece by piece (tokenizers 0.23, `AddedVocabulary::extract_and_normalize`). So the ids of
a text are those of its parts, where each part but the first begins with an added token that is searched in
the raw text and takes no space from its left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

__all__ = ["SpecialTokens", "map_texts"]

#: Marks candidates: none of them is a space, a letter, or anything that a template would look for.
_MARKS = tuple(chr(code) for code in range(0xF0000, 0xF0100))


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The added tokens of one tokenizer, as far as text depends on them. Immutable.

    raw: searched in the text as it is, longest first. sound: those of them that a text may be cut before.
    guarded: what only a template may write: special tokens, and those that stand for media.
    """

    raw: tuple[AddedToken, ...]
    sound: frozenset[str]
    guarded: tuple[str, ...]
    _raw_pattern: re.Pattern[str]
    _guarded_pattern: re.Pattern[str]
    _beginnings: tuple[str, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, media_token_ids: Iterable[int] = ()) -> SpecialTokens:
        added: dict[int, AddedToken] = tokenizer.added_tokens_decoder
        media = set(media_token_ids)
        raw = [token for token in added.values() if not token.normalized]
        raw.sort(key=lambda token: -len(token.content))
        guarded = [t.content for i, t in added.items() if (t.special or i in media) and len(t.content) > 1]
        guarded.sort(key=len, reverse=True)
        # A token that must stand alone looks at its neighbours, and so beyond a cut.
        can_cut = tokenizer.is_fast and not any(token.single_word for token in added.values())
        sound = {t.content for t in raw if not t.lstrip and not t.content[:1].isspace()} if can_cut else set()
        beginnings = {text[:length] for text in guarded for length in range(1, len(text))}
        return cls(
            raw=tuple(raw),
            sound=frozenset(sound),
            guarded=tuple(guarded),
            _raw_pattern=_any_of(token.content for token in raw),
            _guarded_pattern=_any_of(guarded),
            _beginnings=tuple(sorted(beginnings)),
        )

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """The raw added tokens of a text, as the tokenizer finds them."""
        return self._raw_pattern.finditer(text)

    def cuts(self, text: str) -> list[int]:
        """Positions, ascending, at which a text falls into parts that are tokenized each by itself."""
        return [match.start() for match in self.matches(text) if match.group() in self.sound]

    def would_mark(self, text: str) -> bool:
        """Whether a client's text holds a guarded string, or ends like the beginning of one: what follows
        it in the prompt could complete it."""
        return self._guarded_pattern.search(text) is not None or self._ends_open(text)

    def marked(self, text: str, mark: str) -> str:
        """The text with `mark` inside each guarded string, so that no tokenizer takes it for a token."""
        pieces, done = [], 0
        while (match := self._guarded_pattern.search(text, done)) is not None:
            # On from the next character: two guarded strings may overlap.
            pieces.append(text[done : match.start() + 1] + mark)
            done = match.start() + 1
        rest = text[done:]
        if self._ends_open(text):
            end = len(rest.rstrip()) or len(rest)
            rest = rest[:end] + mark + rest[end:]
        return "".join(pieces) + rest

    def written(self, text: str, mark: str = "") -> list[tuple[int, str]]:
        """The guarded tokens of a text as the tokenizer finds them: position, marks not counted, and name."""
        guarded, found, marks, done = set(self.guarded), [], 0, 0
        are_raw = guarded <= {token.content for token in self.raw}
        # One that is searched in normalized text is looked for as it is spelled.
        for match in (self._raw_pattern if are_raw else self._guarded_pattern).finditer(text):
            marks += text.count(mark, done, match.start()) if mark else 0
            done = match.start()
            if match.group() in guarded:
                found.append((match.start() - marks, match.group()))
        return found

    def _ends_open(self, text: str) -> bool:
        # A template may strip a text's end.
        return text.endswith(self._beginnings) or text.rstrip().endswith(self._beginnings)

    def first_guarded(self, texts: Iterable[str]) -> str:
        """What an error may name: a guarded string of these texts, else what one of them ends with."""
        for text in texts:
            if (match := self._guarded_pattern.search(text)) is not None:
                return match.group()
        return self.guarded[-1]


def unused_mark(texts: Sequence[str]) -> str | None:
    """A character that occurs in none of the texts; None where they hold every candidate."""
    return next((mark for mark in _MARKS if not any(mark in text for text in texts)), None)


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from texts_of(key)
            yield from texts_of(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from texts_of(entry)


def map_texts(value: Any, function: Callable[[str], str]) -> Any:
    """A JSON value with `function` applied to every text in it."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, dict):
        return {map_texts(key, function): map_texts(entry, function) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(entry, function) for entry in value]
    return value


def _any_of(contents: Iterable[str]) -> re.Pattern[str]:
    """Longest first makes an alternation the leftmost longest match. Nothing: never matches."""
    return re.compile("|".join(re.escape(content) for content in contents) or r"(?!)")
