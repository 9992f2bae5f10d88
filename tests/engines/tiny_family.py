"""How tiny models of other families than `app.tiny_models` has are written: transformers' own classes.

Their tokenizer is that of `app.tiny_models`, with the family's own special tokens added after its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.tiny_tokenizer import CHAT_TEMPLATE, VOCAB_SIZE, write_tokenizer

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
QWEN_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
#: Room for the added tokens.
VOCAB = VOCAB_SIZE + 64

TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 32768,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True, slots=True)
class Family:
    """tokens: special tokens, at ids from `VOCAB_SIZE` on. picture: what the chat template writes.

    model_class: None for a configuration without weights.
    weights: a prefix of weights' names as transformers 5 saves them, and as checkpoints and vLLM have it.
    named: tokens that the tokenizer has under names of its own. more: texts that are tokens, but not special.
    code: modules that the folder brings along.
    """

    tokens: tuple[str, ...]
    picture: str
    config: Callable[[dict[str, int]], Any]
    model_class: str | None
    processor: Callable[[Any], Any]
    weights: tuple[str, str] | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)


def write_family(family: Family, folder: Path) -> None:
    import torch
    import transformers

    write_tokenizer(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([transformers.AddedToken(token, special=True) for token in family.tokens])
    tokenizer.add_tokens([transformers.AddedToken(text, normalized=False) for text in family.more])
    tokenizer.chat_template = CHAT_TEMPLATE.replace(QWEN_PICTURE, family.picture)
    tokenizer.save_pretrained(folder)
    if family.named:
        tokenizer = _with_names(folder, family.named)
    for name, text in family.code.items():
        (folder / name).write_text(text)
    torch.manual_seed(0)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in family.tokens}
    family.processor(tokenizer).save_pretrained(folder)
    config = family.config(ids)
    if family.model_class is None:
        config.save_pretrained(folder)
        return
    model = getattr(transformers, family.model_class)(config)
    model.generation_config = transformers.GenerationConfig(eos_token_id=2, pad_token_id=0)
    model.to(torch.bfloat16).save_pretrained(folder)
    if family.weights is not None:
        _rename(folder / "model.safetensors", *family.weights)


def _with_names(folder: Path, named: Mapping[str, str]) -> Any:
    from transformers import PreTrainedTokenizerFast

    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"extra_special_tokens": dict(named)}
    file.write_text(json.dumps(settings))
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _rename(file: Path, old: str, new: str) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    renamed = {new + name[len(old) :] if name.startswith(old) else name: w for name, w in weights.items()}
    save_file(renamed, file, metadata={"format": "pt"})


class WrittenConfig:
    """A config.json whose class the folder brings along."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def save_pretrained(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(self._values))


def no_processor(tokenizer: Any) -> Any:
    return tokenizer
