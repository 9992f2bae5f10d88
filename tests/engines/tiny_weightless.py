"""Tiny models without weights: the engine draws them itself, or only the installed processor is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.engines.tiny_family import GOLDEN, TEXT, TOWER, VOCAB, Family, WrittenConfig
from tests.engines.tiny_omni import OMNI
from tests.engines.tiny_remote_kinds import INTERNVL_CHAT, NEMOTRON


def _glm4v(ids: dict[str, int]) -> Any:
    from transformers import Glm4vConfig

    text = {
        **TEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    }
    text["rope_parameters"]["partial_rotary_factor"] = 0.5
    vision = {"hidden_size": 64, "depth": 2, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 128}
    return Glm4vConfig(
        text_config=text,
        vision_config=vision | {"image_size": 336, "patch_size": 14},
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        image_start_token_id=ids["<|begin_of_image|>"],
        image_end_token_id=ids["<|end_of_image|>"],
        video_start_token_id=ids["<|begin_of_video|>"],
        video_end_token_id=ids["<|end_of_video|>"],
    )


def _glm4v_processor(tokenizer: Any) -> Any:
    from transformers import Glm4vImageProcessor, Glm4vProcessor, Glm4vVideoProcessor

    return Glm4vProcessor(Glm4vImageProcessor(), tokenizer, Glm4vVideoProcessor())


def _kimi_k25(ids: dict[str, int]) -> Any:
    from transformers import Kimi_K25Config

    text = {"model_type": "deepseek_v3", **TEXT, "num_key_value_heads": 2}
    return Kimi_K25Config(
        architectures=["KimiK25ForConditionalGeneration"],
        text_config=text,
        vision_config=dict(TOWER),
        projection_hidden_size=64,
        image_token_id=ids["<|media_pad|>"],
    )


def _kimi_k3(ids: dict[str, int]) -> Any:
    text = {"model_type": "kimi_linear", "hidden_size": 64, "vocab_size": VOCAB}
    return WrittenConfig(
        model_type="kimi_k3",
        architectures=["KimiK3ForConditionalGeneration"],
        media_placeholder_token_id=ids["<|media_pad|>"],
        text_config=text,
    )


def _kimi_processor(name: str) -> Callable[[Any], Any]:
    def make(tokenizer: Any) -> Any:
        from transformers.image_processing_utils import BaseImageProcessor

        settings = json.loads((GOLDEN / f"{name}.json").read_text())["meta"]["media_proc_cfg"]
        return BaseImageProcessor(media_proc_cfg=settings)

    return make


def _gemma3(ids: dict[str, int]) -> Any:
    from transformers import Gemma3Config, Gemma3TextConfig, SiglipVisionConfig

    text = TEXT | {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
    return Gemma3Config(
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=Gemma3TextConfig(**text, query_pre_attn_scalar=32),
        vision_config=SiglipVisionConfig(**TOWER, image_size=112, patch_size=14),
        mm_tokens_per_image=64,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )


def _gemma3_processor(tokenizer: Any) -> Any:
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    pictures = Gemma3ImageProcessor(size={"height": 112, "width": 112}, do_pan_and_scan=False)
    return Gemma3Processor(pictures, tokenizer, image_seq_length=64)


def _internvl(ids: dict[str, int]) -> Any:
    from transformers import InternVLConfig, InternVLVisionConfig, Qwen2Config

    tower = InternVLVisionConfig(**TOWER, image_size=[112, 112], patch_size=[14, 14])
    text = Qwen2Config(**TEXT)
    return InternVLConfig(
        vision_config=tower,
        text_config=text,
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=16,
        architectures=["InternVLForConditionalGeneration"],
    )


def _internvl_processor(tokenizer: Any) -> Any:
    from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

    size = {"height": 112, "width": 112}
    pictures = GotOcr2ImageProcessor(size=size, crop_to_patches=True, max_patches=6)
    return InternVLProcessor(pictures, tokenizer, InternVLVideoProcessor(size=size), image_seq_length=16)


_GLM_TOKENS = (
    "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>",
    "<|begin_of_video|>", "<|end_of_video|>",
)  # fmt: skip

_KIMI_TOKENS = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")

_INTERNVL_TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>")
_GEMMA_TOKENS = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")


#: Run on the engine.
WEIGHTLESS = {
    "glm4v": Family(
        _GLM_TOKENS,
        "<|begin_of_image|><|image|><|end_of_image|>",
        _glm4v,
        "Glm4vForConditionalGeneration",
        _glm4v_processor,
    ),
    "kimi_k25": Family(
        _KIMI_TOKENS,
        "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
        _kimi_k25,
        None,
        _kimi_processor("kimi_k25"),
    ),
    "gemma3": Family(
        _GEMMA_TOKENS,
        "<start_of_image>",
        _gemma3,
        None,
        _gemma3_processor,
        named={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        more=("\n", "\n\n", "\n\n\n", "\n\n\n\n"),
    ),
    "internvl": Family(
        (*_INTERNVL_TOKENS, "<video>"),
        "<IMG_CONTEXT>",
        _internvl,
        None,
        _internvl_processor,
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "internvl_chat": INTERNVL_CHAT,
    **OMNI,
}

#: Compared with the installed processor only.
PROCESSOR_ONLY = {
    "kimi_k3": Family(
        (*_KIMI_TOKENS, "<|kimi_image_placeholder|>"),
        "<|kimi_image_placeholder|>",
        _kimi_k3,
        None,
        _kimi_processor("kimi_k3"),
    ),
    "nemotron": NEMOTRON,
}
