"""Tiny Qwen-Omni models, without weights."""

from __future__ import annotations

from typing import Any

from tests.engines.tiny_family import QWEN_PICTURE, TEXT, Family


def _qwen2_5_omni(ids: dict[str, int]) -> Any:
    from transformers import Qwen2_5OmniConfig

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]}
    thinker = {
        "text_config": {**TEXT, "rope_parameters": rope},
        "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 2, "out_hidden_size": 64},
        "audio_config": {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "output_dim": 64},
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "audio_token_index": ids["<|AUDIO|>"],
    }
    return Qwen2_5OmniConfig(thinker_config=thinker, architectures=["Qwen2_5OmniForConditionalGeneration"])


_OMNI3_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 64}
#: With what vLLM reads and transformers' class does not declare: the published files have both.
_OMNI3_VISION = {
    "depth": 2,
    "hidden_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "intermediate_size": 128,
    "deepstack_visual_indexes": [0, 1],
    "image_size": 768,
    "apply_vit_abs_pos_embed": True,
}


def _qwen3_omni(ids: dict[str, int]) -> Any:
    from transformers import Qwen3OmniMoeConfig

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]}
    tokens = {f"{name}_token_id": ids[f"<|{name}_pad|>"] for name in ("image", "video", "audio")}
    thinker = {
        "text_config": TEXT | {"rope_parameters": rope, "tie_word_embeddings": False} | _OMNI3_EXPERTS,
        "vision_config": _OMNI3_VISION,
        "audio_config": {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "output_dim": 64},
    }
    return Qwen3OmniMoeConfig(
        thinker_config=thinker | tokens, architectures=["Qwen3OmniMoeForConditionalGeneration"]
    )


def _qwen3_omni_processor(tokenizer: Any) -> Any:
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3OmniMoeProcessor,
        WhisperFeatureExtractor,
    )

    patches = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    limits = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}
    return Qwen3OmniMoeProcessor(
        Qwen2VLImageProcessor(**patches, **limits),
        Qwen2VLVideoProcessor(**patches),
        WhisperFeatureExtractor(feature_size=128),
        tokenizer,
    )


def _qwen2_5_omni_processor(tokenizer: Any) -> Any:
    from transformers import (
        Qwen2_5OmniProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        WhisperFeatureExtractor,
    )

    limits = {"min_pixels": 3136, "max_pixels": 12845056}
    return Qwen2_5OmniProcessor(
        Qwen2VLImageProcessor(**limits),
        Qwen2VLVideoProcessor(),
        WhisperFeatureExtractor(feature_size=128),
        tokenizer,
    )


_OMNI_TOKENS = (
    "<|IMAGE|>", "<|VIDEO|>", "<|AUDIO|>", "<|vision_bos|>", "<|vision_eos|>",
    "<|audio_bos|>", "<|audio_eos|>",
)  # fmt: skip
_OMNI_NAMES = dict(
    zip(
        ("image", "video", "audio", "vision_bos", "vision_eos", "audio_bos", "audio_eos"),
        _OMNI_TOKENS,
        strict=True,
    )
)
#: The pictures' and clips' are in the tokenizer already.
_OMNI3_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>")
OMNI = {
    "qwen2_5_omni": Family(
        _OMNI_TOKENS,
        "<|vision_bos|><|IMAGE|><|vision_eos|>",
        _qwen2_5_omni,
        None,
        _qwen2_5_omni_processor,
        named={f"{name}_token": token for name, token in _OMNI_NAMES.items()},
    ),
    "qwen3_omni": Family(
        _OMNI3_TOKENS,
        QWEN_PICTURE,
        _qwen3_omni,
        None,
        _qwen3_omni_processor,
        named={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "audio_token": "<|audio_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    ),
}
