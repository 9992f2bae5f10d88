"""From a rendered prompt to token ids: cached part by part, and special tokens only where a template wrote
them."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerBase

from processors.ascii_words import AsciiWords
from processors.errors import RequestError
from processors.special_tokens import SpecialTokens
from processors.token_cache import Ids, TokenCache

__all__ = ["Encoded", "PromptEncoder"]

#: Unicode's White_Space, which is what the tokenizers library strips beside a token (Python's own notion
#: has four control characters more).
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(frozen=True, slots=True)
class Encoded:
    """first: how many ids belong to the text before the asked position; 0 where that cannot be told."""

    array: Ids
    first: int

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.array.tolist())


class PromptEncoder:
    """Safe from several threads. Its ids are those of the whole text at once (`SpecialTokens`)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, specials: SpecialTokens, cache: TokenCache
    ) -> None:
        self._tokenizer = tokenizer
        self._specials = specials
        self._cache = cache
        self._lock = threading.Lock()
        is_fast = tokenizer.is_fast
        self._words = AsciiWords.of(tokenizer.backend_tokenizer) if is_fast else None
        self._added_ids = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}

    def encode(self, text: str, position: int = 0) -> Encoded:
        """The ids of a text in which every special token counts, and how many lie before `position`.

        Raises:
            RequestError: 400 for text that is not Unicode.
        """
        try:
            return self._encode(text, position)
        except (UnicodeEncodeError, TypeError) as error:
            raise _not_unicode(error) from error

    def _encode(self, text: str, position: int) -> Encoded:
        cuts = self._specials.cuts(text)
        if not cuts:
            return self._encode_whole(text, position)
        parts = _parts(text, cuts)
        ids = self._cache.ids_of(parts, self._encode_parts)
        return Encoded(_joined(ids), self._before(parts, ids, position))

    def _encode_whole(self, text: str, position: int) -> Encoded:
        encoding = self._tokenizer(text, add_special_tokens=False)
        ids = np.array(encoding["input_ids"], dtype=np.int32)
        if position == len(text):
            return Encoded(ids, len(ids))
        if not self._tokenizer.is_fast or position == 0:
            return Encoded(ids, 0)
        return Encoded(ids, encoding.char_to_token(position) or 0)

    def _encode_parts(self, parts: list[str]) -> list[Ids]:
        by_word = [self._by_word(part) for part in parts]
        rest = [part for part, ids in zip(parts, by_word, strict=True) if ids is None]
        # Only fast tokenizers have cuts, and the fast encoding leaves out the positions in the text.
        encode = self._tokenizer.backend_tokenizer.encode_batch_fast
        encoded = iter(encode(rest, add_special_tokens=False) if rest else ())
        return [np.array(next(encoded).ids, dtype=np.int32) if ids is None else ids for ids in by_word]

    def _by_word(self, part: str) -> Ids | None:
        """The ids of a special token and the text after it; None where only the tokenizer can tell."""
        if self._words is None:
            return None
        token = self._token_at(part)
        if token is None:
            return self._words.ids_of(part)
        return self._words.ids_of(part[len(token.content) :], (self._added_ids[token.content],))

    def _token_at(self, part: str) -> AddedToken | None:
        return next((t for t in self._specials.raw if part.startswith(t.content)), None)

    def _before(self, parts: Sequence[str], ids: Sequence[Ids], position: int) -> int:
        tokens = start = 0
        for part, part_ids in zip(parts, ids, strict=True):
            if start + len(part) > position:
                inside = self._encode_whole(part, position - start).first if position > start else 0
                return tokens + inside if inside or position == start else 0
            start += len(part)
            tokens += len(part_ids)
        return tokens

    # Text in which a client wrote what looks like a special token

    def encode_marked(self, text: str, mark: str, position: int = 0) -> Encoded:
        """The ids of a text in which `mark` stands inside every string that must stay plain text.

        position: in the text with its marks.

        Raises:
            RequestError: 400 where this tokenizer cannot write such a string as plain text, or for text that
                is not Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _not_unicode(error) from error
        pieces: list[Ids] = []
        first = 0 if position else None
        for start, part in _with_starts(_parts(text, self._guarded_starts(text))):
            if first is not None and start == position:
                first = sum(map(len, pieces))
            pieces += self._marked_part(part, mark)
        ids = _joined(pieces)
        return Encoded(ids, len(ids) if position == len(text) else first or 0)

    def _guarded_starts(self, text: str) -> list[int]:
        guarded = set(self._specials.guarded)
        return [match.start() for match in self._specials.matches(text) if match.group() in guarded]

    def _marked_part(self, part: str, mark: str) -> Iterator[Ids]:
        """One special token of the template (but for the first part), and the text after it."""
        token = self._token_at(part)
        if token is None or token.content not in self._specials.guarded:
            yield self._plain_ids(part.replace(mark, ""))
            return
        yield np.array([self._tokenizer.convert_tokens_to_ids(token.content)], dtype=np.int32)
        yield self._plain_ids(_after(token, part).replace(mark, ""))

    def _plain_ids(self, text: str) -> Ids:
        with self._lock:
            tokenizer = self._plain_tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False).ids if text else []
        return np.array(ids, dtype=np.int32)

    @functools.cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        """A twin that takes no guarded string for a token. Made at its first use: a second vocabulary.

        Raises:
            RequestError: 400 where the pieces of a text cannot be encoded each by itself.
        """
        if not self.can_write_plain:
            message = "the messages hold a special token's name, which this model's tokenizer cannot take "
            raise RequestError(
                message + "for plain text; leave it out", param="messages", code="special_token"
            )
        spec = json.loads(self._tokenizer.backend_tokenizer.to_str())
        for token in spec["added_tokens"]:
            token["special"] |= token["content"] in self._specials.guarded
        twin: Tokenizer = Tokenizer.from_str(json.dumps(spec))
        twin.no_padding()
        twin.no_truncation()
        twin.encode_special_tokens = True
        return twin

    @functools.cached_property
    def can_write_plain(self) -> bool:
        """Whether a guarded string can be told from the token: the tokenizer is a fast one that searches
        such tokens in the raw text, looks at no neighbours but spaces, and treats a text alike wherever it
        stands."""
        guarded = set(self._specials.guarded)
        raw = [token for token in self._specials.raw if token.content in guarded]
        if not self._tokenizer.is_fast or len(raw) < len(guarded) or not raw:
            return False
        if any(token.single_word or token.lstrip for token in self._tokenizer.added_tokens_decoder.values()):
            return False
        token = next((t for t in raw if not t.rstrip), None)
        return token is not None and all(self._is_alike_after(token.content, text) for text in ("a", " a"))

    def _is_alike_after(self, token: str, text: str) -> bool:
        after = self._tokenizer(token + text, add_special_tokens=False)["input_ids"]
        return bool(after[1:] == self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _not_unicode(error: Exception) -> RequestError:
    return RequestError(f"the messages are not valid Unicode: {error}", param="messages")


def _parts(text: str, cuts: Sequence[int]) -> list[str]:
    """The text between the cuts; a first part without a token of its own where it begins with none."""
    bounds = [*([] if cuts and cuts[0] == 0 else [0]), *cuts, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def _with_starts(parts: Sequence[str]) -> Iterator[tuple[int, str]]:
    start = 0
    for part in parts:
        yield start, part
        start += len(part)


def _after(token: AddedToken, part: str) -> str:
    rest = part[len(token.content) :]
    return rest.lstrip(_SPACES) if token.rstrip else rest


def _joined(pieces: Sequence[Ids]) -> Ids:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
