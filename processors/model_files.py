"""A model's own files, as far as a prompt needs them: never its weights."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

__all__ = ["ModelFiles", "ModelFolder", "read_preprocessors"]

log = logging.getLogger("sightline.processors")


@dataclass(frozen=True)
class ModelFiles:
    """The configuration files and the tokenizer of one model.

    config: config.json. preprocessor: the image processor's settings, empty for a text-only model.
    tokenizer: with the chat template, where the model has one.
    video_preprocessor: the video processor's settings, empty for a model without.
    """

    config: dict[str, Any]
    preprocessor: dict[str, Any]
    tokenizer: PreTrainedTokenizerBase
    video_preprocessor: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(
        cls, model: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
    ) -> ModelFiles:
        """Read a local folder, or fetch a hub id's small files into the hub's cache.

        revision: of a hub id. trust_remote_code: run the tokenizer that the model brings along.

        Raises:
            OSError: there is no such model, or it lacks config.json or a tokenizer.
            ValueError: its tokenizer is code of its own, which is not trusted.
        """
        name = str(model)
        config = _read_json(name, "config.json", required=True, revision=revision)
        # Said either way: left open, transformers asks the terminal.
        tokenizer = cast(
            PreTrainedTokenizerBase,
            AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code),
        )
        if (template := _processors_template(name, revision)) is not None:
            own = tokenizer.chat_template
            tokenizer.chat_template = {"default": template, "tool_use": own} if own else template
        preprocessor, video = read_preprocessors(name, revision)
        return cls(config, preprocessor, tokenizer, video)

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(self.config.get("architectures") or ())

    @property
    def max_model_len(self) -> int | None:
        """The longest prompt that the model was made for; an engine may be set to less."""
        sections = (self.config, self.config.get("text_config"), self.config.get("llm_config"))
        found = (part.get("max_position_embeddings") for part in sections if isinstance(part, dict))
        length = next((length for length in found if length), None)
        return None if length is None else int(length)

    @property
    def image_token_id(self) -> int | None:
        """The token that stands for an image, by either of the names that config files use."""
        found = self.config.get("image_token_id", self.config.get("image_token_index"))
        return found if isinstance(found, int) else None

    @property
    def media_token_ids(self) -> tuple[int, ...]:
        """Every token that stands for a media item; a user's text must not contain their names."""
        return self._tokens("image_token_id", "image_token_index", "video_token_id", "video_token_index")

    @property
    def video_token_ids(self) -> tuple[int, ...]:
        """Those of them that stand for a video."""
        return self._tokens("video_token_id", "video_token_index")

    def _tokens(self, *names: str) -> tuple[int, ...]:
        thinker = self.config.get("thinker_config")  # of Omni models
        sections = [self.config, *([thinker] if isinstance(thinker, dict) else [])]
        found = (section.get(name) for section in sections for name in names)
        return tuple(dict.fromkeys(token for token in found if isinstance(token, int)))


@dataclass(frozen=True)
class ModelFolder:
    """As much of a model's folder as its layout needs: configuration, and a tokenizer where there is one."""

    config: dict[str, Any]
    preprocessor: dict[str, Any]
    video_preprocessor: dict[str, Any]
    tokenizer: PreTrainedTokenizerBase | None

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False) -> ModelFolder:
        """
        trust_remote_code: run the tokenizer that the model brings along.

        Raises:
            OSError: it is not a folder with a config.json, or a file in it is broken.
        """
        if not (folder / "config.json").is_file():
            raise OSError(f"{folder} is not a model's folder: it has no config.json")
        config = _read_json(str(folder), "config.json", required=True)
        image, video = read_preprocessors(str(folder))
        return cls(config, image, video, _tokenizer_of(folder, trust_remote_code))


def _tokenizer_of(folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    """Read from tokenizer.json alone where it is there, so that a model type nobody knows is no obstacle."""
    if (folder / "tokenizer.json").is_file():
        start = _read_json(str(folder), "tokenizer_config.json", required=False).get("bos_token")
        start = start.get("content") if isinstance(start, dict) else start
        file = str(folder / "tokenizer.json")
        try:
            return PreTrainedTokenizerFast(tokenizer_file=file, bos_token=start)
        except Exception as error:  # tokenizers (0.22) raises no narrower class for a broken file
            raise OSError(f"{file} cannot be read: {error}") from error
    if not any(
        (folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "tokenizer_config.json")
    ):
        return None
    _read_json(str(folder), "tokenizer_config.json", required=False)  # refused here where it is no object
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
        return cast(PreTrainedTokenizerBase, tokenizer)
    except (OSError, ValueError, ImportError) as error:
        log.warning(
            "%s has a tokenizer that cannot be read, layouts with text are refused: %s", folder, error
        )
        return None


def read_preprocessors(model: str, revision: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the image processor and of the video processor, {} where a model has none.

    In transformers' own order: a section of processor_config.json, the processor's own file, and for
    videos last the image processor's file. What the whole processor says of a picture's tokens
    (`image_seq_length`) is among the image processor's.
    """
    nested = _read_json(model, "processor_config.json", required=False, revision=revision)
    own = _read_json(model, "preprocessor_config.json", required=False, revision=revision)
    image, video = nested.get("image_processor"), nested.get("video_processor")
    if not isinstance(video, dict):
        file = "video_preprocessor_config.json"
        video = _read_json(model, file, required=False, revision=revision) or own
    whole = {name: nested[name] for name in ("image_seq_length",) if name in nested}
    return whole | (image if isinstance(image, dict) else own), video


def _processors_template(model: str, revision: str | None) -> str | None:
    """The chat template in the processor's own old file; it wins over the tokenizer's but for requests with
    tools, as in vLLM's chat path. The newer chat_template.jinja is the tokenizer's too."""
    if _path_of(model, "chat_template.jinja", required=False, revision=revision) is not None:
        return None
    found = _read_json(model, "chat_template.json", required=False, revision=revision).get("chat_template")
    return found if isinstance(found, str) else None


def _path_of(model: str, name: str, *, required: bool, revision: str | None) -> str | None:
    path: str | None = cached_file(
        model,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=required,
        _raise_exceptions_for_connection_errors=required,
    )
    return path


def _read_json(model: str, name: str, *, required: bool, revision: str | None = None) -> dict[str, Any]:
    path = _path_of(model, name, required=required, revision=revision)
    if path is None and required:
        raise OSError(f"{model} has no {name}: is it a model's folder or hub id?")
    if path is None:
        return {}
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OSError(f"{name} of {model} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise OSError(f"{name} of {model} is not a JSON object")
    return content
