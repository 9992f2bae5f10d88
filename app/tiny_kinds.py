"""The families that tiny models are made of: what goes into config.json and the processor configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.tiny_tokenizer import VOCAB_SIZE, token_id

__all__ = ["TINY_KINDS", "TinyKind"]

Json = dict[str, Any]

_HIDDEN = 64
# Of the CPU attention backend's head sizes (32, 64, 80, ...) the smallest.
_HEAD_DIM = 32
# Of the CPU's linear attention kernel.
_LINEAR_HEAD_DIM = 64
_MERGE = 2
# Per image, after merging 2 x 2 patches.
_MIN_MERGED_PATCHES, _MAX_MERGED_PATCHES = 4, 1280
_MAX_MERGED_PATCHES_VIDEO = 4096

_CLIP_MEAN, _CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_HALF = [0.5, 0.5, 0.5]


@dataclass(frozen=True, slots=True)
class TinyKind:
    """What sets one family apart. `config` has a model's config.json keys, of both towers.

    size_as_pixels: the family's checkpoints give image limits as min_pixels / max_pixels,
        not as size.shortest_edge / size.longest_edge.
    """

    model_class: str
    config: Callable[[], Json]
    patch_size: int
    mean: list[float]
    std: list[float]
    processor: str
    video_processor: str
    size_as_pixels: bool

    def image_processor_config(self) -> Json:
        limits = _limits(self.patch_size, _MAX_MERGED_PATCHES)
        if self.size_as_pixels:
            limits = {"min_pixels": limits["shortest_edge"], "max_pixels": limits["longest_edge"]}
        else:
            limits = {"size": limits}
        return {**self._shared_config(), **limits, "image_processor_type": "Qwen2VLImageProcessor"}

    def video_processor_config(self) -> Json:
        return {
            **self._shared_config(),
            "video_processor_type": self.video_processor,
            "size": _limits(self.patch_size, _MAX_MERGED_PATCHES_VIDEO),
            "fps": 2,
            "min_frames": 4,
            "max_frames": 64,
            # As the families' checkpoints have it: only Qwen3's processor samples, unless told.
            "do_sample_frames": self.video_processor == "Qwen3VLVideoProcessor",
            "cap_pixels_per_frame": False,  # what transformers 5.19 does unless told; told, it does not warn
        }

    def _shared_config(self) -> Json:
        return {
            "processor_class": self.processor,
            "patch_size": self.patch_size,
            "temporal_patch_size": 2,
            "merge_size": _MERGE,
            "image_mean": self.mean,
            "image_std": self.std,
            "resample": 3,
            "rescale_factor": 1 / 255,
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "do_convert_rgb": True,
        }


def _limits(patch_size: int, max_merged_patches: int) -> Json:
    """In pixels, though the keys say edges."""
    pixels = (patch_size * _MERGE) ** 2
    return {"shortest_edge": _MIN_MERGED_PATCHES * pixels, "longest_edge": max_merged_patches * pixels}


def _text_config(rope_theta: float, **more: Any) -> Json:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": _HIDDEN // _HEAD_DIM,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": token_id("<|im_end|>"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": rope_theta,
            "mrope_section": [6, 5, 5],  # of head_dim / 2
            **more.pop("rope", {}),
        },
        **more,
    }


def _config(text: Json, vision: Json) -> Json:
    return {
        "text_config": text,
        "vision_config": {
            "depth": 2,
            "num_heads": _HIDDEN // _HEAD_DIM,
            "spatial_merge_size": _MERGE,
            "temporal_patch_size": 2,
            **vision,
        },
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "vision_end_token_id": token_id("<|vision_end|>"),
        "tie_word_embeddings": False,
    }


def _qwen2_vl() -> Json:
    return _config(
        _text_config(1e6),
        # in_chans: as checkpoints have it; SGLang reads it, and transformers 5 writes in_channels only.
        {"patch_size": 14, "embed_dim": _HIDDEN, "hidden_size": _HIDDEN, "mlp_ratio": 2, "in_chans": 3},
    )


def _qwen2_5_vl() -> Json:
    return _config(
        _text_config(1e6),
        {
            "patch_size": 14,
            "hidden_size": _HIDDEN,
            "out_hidden_size": _HIDDEN,
            "intermediate_size": 2 * _HIDDEN,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
    )


def _qwen3_vl() -> Json:
    return _config(
        _text_config(5e6, head_dim=_HEAD_DIM, rms_norm_eps=1e-6, rope={"mrope_interleaved": True}),
        {
            "patch_size": 16,
            "hidden_size": _HIDDEN,
            "out_hidden_size": _HIDDEN,
            "intermediate_size": 2 * _HIDDEN,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0],
        },
    )


def _qwen3_5() -> Json:
    """Linear attention, then full attention: two kinds of KV cache groups."""
    rope = {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}
    text = _text_config(1e7, head_dim=_HEAD_DIM, rms_norm_eps=1e-6, rope=rope)
    text |= {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": _LINEAR_HEAD_DIM,
        "linear_value_head_dim": _LINEAR_HEAD_DIM,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
    }
    vision = _qwen3_vl()["vision_config"] | {"deepstack_visual_indexes": []}
    return _config(text, vision)


TINY_KINDS = {
    "qwen3_5": TinyKind(
        model_class="Qwen3_5ForConditionalGeneration",
        config=_qwen3_5,
        patch_size=16,
        mean=_HALF,
        std=_HALF,
        processor="Qwen3VLProcessor",
        video_processor="Qwen3VLVideoProcessor",
        size_as_pixels=False,
    ),
    "qwen3_vl": TinyKind(
        model_class="Qwen3VLForConditionalGeneration",
        config=_qwen3_vl,
        patch_size=16,
        mean=_HALF,
        std=_HALF,
        processor="Qwen3VLProcessor",
        video_processor="Qwen3VLVideoProcessor",
        size_as_pixels=False,
    ),
    "qwen2_5_vl": TinyKind(
        model_class="Qwen2_5_VLForConditionalGeneration",
        config=_qwen2_5_vl,
        patch_size=14,
        mean=_CLIP_MEAN,
        std=_CLIP_STD,
        processor="Qwen2_5_VLProcessor",
        video_processor="Qwen2VLVideoProcessor",
        size_as_pixels=True,
    ),
    "qwen2_vl": TinyKind(
        model_class="Qwen2VLForConditionalGeneration",
        config=_qwen2_vl,
        patch_size=14,
        mean=_CLIP_MEAN,
        std=_CLIP_STD,
        processor="Qwen2VLProcessor",
        video_processor="Qwen2VLVideoProcessor",
        size_as_pixels=True,
    ),
}
