"""Model folders without weights, made on the spot: a byte-level tokenizer, a Qwen-like template, configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
IMAGE_PAD, VIDEO_PAD = SPECIALS.index("<|image_pad|>"), SPECIALS.index("<|video_pad|>")

# Every tag trims what is left of it, so lines may break before any.
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.content == 'forbidden' %}
{{- raise_exception('no such answer') }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + (call.function.arguments | tojson) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if shout %}{{- 'LOUD' }}{%- endif %}
{%- endif %}"""

TEXT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}"""

PREPROCESSORS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056},
    "qwen2_5_vl": {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056},
    "qwen3_vl": {
        "patch_size": 16,
        "merge_size": 2,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    },
}


def tiny_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte, and the specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[s for s in SPECIALS if s not in ("<|im_end|>", "<|endoftext|>")],
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )


def tiny_folder(
    folder: Path,
    model_type: str = "qwen3_vl",
    *,
    template: str | None = TEMPLATE,
    preprocessor: dict[str, Any] | None = None,
    image_token: int | None = IMAGE_PAD,
) -> Path:
    """Write the files of one model and return its folder. image_token: as config.json names it."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer(template).save_pretrained(folder)
    config = {
        "model_type": model_type,
        "image_token_id": image_token,
        "video_token_id": VIDEO_PAD,
        "text_config": {"max_position_embeddings": 4096},
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = PREPROCESSORS.get(model_type) if preprocessor is None else preprocessor
    if settings is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder
