"""What a family's module reads of a model, and how: files, vocabulary, options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from transformers import PreTrainedTokenizerBase

from processors.layout import LayoutOptions, LayoutRefused
from sightline_types import DegradeReason, Modality

__all__ = ["Encode", "LayoutFiles", "Source", "positive"]

#: A text's ids, tokenized alone, without special tokens.
Encode = Callable[[str], tuple[int, ...]]

_TEXT_CACHE = 4096


class LayoutFiles(Protocol):
    """A model's files, as `ModelFiles` has them; the tokenizer may be missing where no layout needs it."""

    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def preprocessor(self) -> dict[str, Any]: ...
    @property
    def video_preprocessor(self) -> dict[str, Any]: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None: ...


@dataclass(frozen=True)
class Source:
    """One model, as its family's module reads it."""

    files: LayoutFiles
    options: LayoutOptions = field(default_factory=LayoutOptions)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.files.config

    @property
    def vision(self) -> Mapping[str, Any]:
        """config.json's vision_config."""
        found = self.config.get("vision_config")
        return found if isinstance(found, Mapping) else {}

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type") or "")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Of the image processor, without the request's."""
        return self.files.preprocessor

    def kwargs(self, modality: Modality) -> dict[str, Any]:
        """The processor kwargs for one modality: flat names, and those of its own section over them."""
        given = self.options.processor_kwargs
        flat = {name: value for name, value in given.items() if not name.endswith("_kwargs")}
        nested = given.get(f"{modality}s_kwargs")
        return flat | (dict(nested) if isinstance(nested, Mapping) else {})

    @property
    def has_nested_kwargs(self) -> bool:
        """Whether the engine was given processor kwargs in sections (`images_kwargs`)."""
        return any(name.endswith("_kwargs") for name in self.options.processor_kwargs)

    def named(self, families: Mapping[str, str]) -> str | None:
        """The family by config.json's model_type, and failing that by its first known architecture.

        families: architecture to model_type.
        """
        if self.model_type in families.values():
            return self.model_type
        architectures = self.config.get("architectures")
        if not isinstance(architectures, list | tuple):
            return None
        return next((families[name] for name in architectures if name in families), None)

    def number(self, settings: Mapping[str, Any], name: str, default: int | None = None) -> int:
        """
        Raises:
            LayoutRefused: it is neither there nor has a default, or is no number of at least 1.
        """
        value = positive(settings.get(name, default))
        if value is None:
            raise _missing(f"the model's files do not say {name} as a number of at least 1")
        return value

    def ratio(self, settings: Mapping[str, Any], name: str, default: float) -> float:
        """
        Raises:
            LayoutRefused: it is there and no number above 0 and up to 1.
        """
        value = settings.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise _missing(f"the model's files do not say {name} as a number above 0 and up to 1")
        return float(value)

    def token(self, *names: str, text: str | None = None, within: Mapping[str, Any] | None = None) -> int:
        """The first of config.json's keys `names` that holds an id, else the vocabulary's id of `text`.

        within: the section of config.json that has the keys, where it is not the top.

        Raises:
            LayoutRefused: neither says it.
        """
        for name in names:
            value = (self.config if within is None else within).get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        found = None if text is None else self._vocabulary_id(text)
        if found is None:
            where = [*names, *([] if text is None else [f"{text} in the tokenizer's vocabulary"])]
            raise _missing(f"the model's files do not say {' or '.join(where)}")
        return found

    def _vocabulary_id(self, text: str) -> int | None:
        if self.files.tokenizer is None:
            return None
        found = self.files.tokenizer.get_vocab().get(text)
        return None if found is None else int(found)

    def encoder(self) -> Encode:
        """How texts inside a replacement become ids. What was tokenized is remembered, up to a bound.

        Raises:
            LayoutRefused: the model has no tokenizer here.
        """
        tokenizer = self.files.tokenizer
        if tokenizer is None:
            raise _missing("the layout holds text, and the model's files have no tokenizer")
        known: dict[str, tuple[int, ...]] = {}

        def encode(text: str) -> tuple[int, ...]:
            ids = known.get(text)
            if ids is None:
                ids = tuple(cast("list[int]", tokenizer.encode(text, add_special_tokens=False)))
                if len(known) >= _TEXT_CACHE:
                    known.clear()
                known[text] = ids
            return ids

        return encode


def positive(value: object) -> int | None:
    """The whole number of at least 1 that a settings file gives; None where it gives another thing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value >= 1 else None


def _missing(detail: str) -> LayoutRefused:
    return LayoutRefused(DegradeReason.LAYOUT_PARAMETER_MISSING, detail)
