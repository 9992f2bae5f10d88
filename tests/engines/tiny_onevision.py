"""A tiny LLaVA-OneVision: a family that vLLM serves and Sightline's registry does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.tiny_tokenizer import VOCAB_SIZE, token_id, write_tokenizer

_SIDE = 112
_PINPOINTS = [[_SIDE * a, _SIDE * b] for a in (1, 2, 3) for b in (1, 2, 3)]
_TOWER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def tiny_onevision(folder: Path) -> Path:
    """Write the model into `folder` (made if it is not there) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    _write_weights(folder)
    pixels = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": _SIDE, "width": _SIDE}}
    _dump(
        folder / "preprocessor_config.json",
        {
            **pixels,
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "image_grid_pinpoints": _PINPOINTS,
            "do_pad": True,
        },
    )
    video = {**pixels, "video_processor_type": "LlavaOnevisionVideoProcessor"}
    _dump(folder / "video_preprocessor_config.json", video)
    processor = {
        "processor_class": "LlavaOnevisionProcessor",
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "num_image_tokens": (_SIDE // 14) ** 2,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_9",
    }
    _dump(folder / "processor_config.json", processor)
    return folder


def _write_weights(folder: Path) -> None:
    import torch
    from transformers import GenerationConfig, LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    text = {
        **_TOWER,
        "model_type": "qwen2",
        "vocab_size": VOCAB_SIZE,
        "num_key_value_heads": 1,
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": token_id("<|im_end|>"),
    }
    vision = {**_TOWER, "model_type": "siglip_vision_model", "image_size": _SIDE, "patch_size": 14}
    config = LlavaOnevisionConfig(
        text_config=text,
        vision_config=vision | {"vision_use_head": False},
        image_token_index=token_id("<|image_pad|>"),
        video_token_index=token_id("<|video_pad|>"),
        image_grid_pinpoints=_PINPOINTS,
    )
    torch.manual_seed(0)
    model = LlavaOnevisionForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=token_id("<|im_end|>"), pad_token_id=token_id("<|endoftext|>"), do_sample=False
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    _rename_tower(folder / "model.safetensors")


def _rename_tower(path: Path) -> None:
    """transformers 5 has dropped a level of the SigLIP tower that vLLM 0.32 still loads by."""
    from safetensors.torch import load_file, save_file

    old, new = "vision_tower.", "vision_tower.vision_model."
    weights = {name.replace(new, old).replace(old, new): value for name, value in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
