"""Token ids of ASCII text, word by word: a tokenizer splits text into words before it looks at any of them,
so that the ids of a text are those of its words, and words come again.

Only where that is certain: byte-level BPE whose split is a regular expression that means the same to Python
(as a trial at the start must show), and text in which no added token can stand.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE

from processors.token_cache import Ids

__all__ = ["AsciiWords", "as_ascii_pattern"]

#: Words that are kept, and their characters at most.
KEPT_WORDS, KEPT_CHARS = 65_536, 32
#: Of a text: where more are new, the tokenizer takes the whole of it in less time.
LEARNED_AT_ONCE = 128
#: What changes nothing in ASCII text.
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD"}
#: General categories that the known tokenizers name: their ASCII characters.
_CATEGORIES = {"L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "N": "0-9", "Nd": "0-9"} | dict.fromkeys(
    ("Lt", "Lm", "Lo", "M"), ""
)
#: GPT-2's own, which `ByteLevel` has built in.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TOKEN = re.compile(r"\\p\{(\w+)\}|\\.|\[\^?|\]|.", re.DOTALL)
_TRIAL = (
    "It's WE'LL they'Ve o'clock 'tis don''t 's 'S",
    "a  b   c\td\t\te \n f\n\n\ng \r\n h",
    "x1y22 333 4444 $5.00 1,234e-5 1 2  3\n4",
    "   lead",
    "trail   ",
    "\n\n lead",
    "\n",
    " ",
    "\t \n",
    "(a)[b]{c};d:e/f\\g \"q\" 'q' `q`",
    "fooBar FooBAR fooB3ar_baz",
    "a\x0bb\x0cc\x1cd\x00e",
    "!!! ... ?\n?\r\r a-b--c ---d",
    "http://x.y/z?q=1&r=%20#t",
    "e\n\n\n  e",
)


class AsciiWords:
    """Safe from several threads."""

    def __init__(self, tokenizer: Tokenizer, pattern: re.Pattern[str], starts: str) -> None:
        """starts: characters that added tokens begin with."""
        self._tokenizer = tokenizer
        self._pattern = pattern
        self._starts = starts
        self._ids: dict[str, list[int]] = {}

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> AsciiWords | None:
        """None for a tokenizer that cannot be taken apart this way."""
        pattern = _pattern_of(tokenizer)
        if pattern is None or not _splits_alike(tokenizer, pattern):
            return None
        added = tokenizer.get_added_tokens_decoder().values()
        if any(token.lstrip or token.rstrip or token.single_word for token in added):
            return None
        return cls(tokenizer, pattern, "".join({token.content[:1] for token in added}))

    def ids_of(self, text: str, before: Sequence[int] = ()) -> Ids | None:
        """Behind those of what stands before it; None where only the tokenizer can tell."""
        if not text.isascii() or any(start in text for start in self._starts):
            return None
        words = self._pattern.findall(text)
        if sum(map(len, words)) != len(text):
            return None
        known = self._known(words)
        if known is None:
            return None
        ids = itertools.chain(before, itertools.chain.from_iterable(map(known.__getitem__, words)))
        return np.array(list(ids), dtype=np.int32)

    def _known(self, words: list[str]) -> dict[str, list[int]] | None:
        """A table that holds all of `words`; None where too many are new (some of them are not any more)."""
        table = self._ids
        new = set(words).difference(table)
        if not new:
            return table
        learned = list(itertools.islice(new, LEARNED_AT_ONCE))
        encodings = self._tokenizer.encode_batch_fast(learned, add_special_tokens=False)
        found = {word: encoding.ids for word, encoding in zip(learned, encodings, strict=True)}
        self._keep(found)
        return table | found if len(found) == len(new) else None

    def _keep(self, found: dict[str, list[int]]) -> None:
        if len(self._ids) + len(found) > KEPT_WORDS:
            self._ids = {}  # whoever reads the old one goes on with it
        self._ids.update((word, ids) for word, ids in found.items() if len(word) <= KEPT_CHARS)


def _pattern_of(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """How the tokenizer splits ASCII text; None where that is not known."""
    model = tokenizer.model
    if not isinstance(model, BPE) or model.dropout:
        return None
    normalizer = _described(tokenizer.normalizer)
    if normalizer and normalizer.get("type") not in _NORMALIZERS:
        return None
    source = _split_of(_described(tokenizer.pre_tokenizer))
    return None if source is None else as_ascii_pattern(source)


def _described(part: Any) -> dict[str, Any]:
    """A tokenizer's part as its file has it; empty for none."""
    said: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return said


def _split_of(pre_tokenizer: dict[str, Any]) -> str | None:
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    if len(steps) == 1:
        return _GPT2 if steps[0]["use_regex"] else None
    first = steps[0]
    is_split = first["type"] == "Split" and first["behavior"] == "Isolated" and not first["invert"]
    if len(steps) != 2 or not is_split or steps[1]["use_regex"]:
        return None
    regex: str | None = first["pattern"].get("Regex")
    return regex


def as_ascii_pattern(source: str) -> re.Pattern[str] | None:
    """A pattern with Unicode categories, as it applies to ASCII text; None where it cannot be said."""
    pieces: list[str] = []
    is_class = False
    for match in _TOKEN.finditer(source):
        piece, category = match.group(), match.group(1)
        if category is not None:
            if category not in _CATEGORIES:
                return None
            members = _CATEGORIES[category]
            piece = members if is_class else f"[{members}]" if members else "(?!)"
        elif piece.startswith("["):
            if is_class:
                return None  # a class within a class is something else to Python
            is_class = True
        elif piece == "]":
            is_class = False
        pieces.append(piece)
    try:
        pattern = re.compile("".join(pieces), re.ASCII)
    except re.error:
        return None
    return pattern if not pattern.groups else None


def _splits_alike(tokenizer: Tokenizer, pattern: re.Pattern[str]) -> bool:
    """Each text where the tokenizer splits it, and each word as one."""
    if tokenizer.pre_tokenizer is None:
        return False
    for text in _TRIAL:
        ends = [end for _, (_, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        words = pattern.findall(text)
        if list(itertools.accumulate(map(len, words))) != ends:
            return False
        if any(pattern.findall(word) != [word] for word in words):
            return False
    return True
