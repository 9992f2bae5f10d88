"""Tiny random-weight models of the families beside Qwen, made with transformers' own classes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.tiny_models import KINDS, tiny_model
from tests.engines.tiny_family import TEXT, TOWER, Family, write_family
from tests.engines.tiny_weightless import PROCESSOR_ONLY, WEIGHTLESS

#: In the folder's name: raise it when the files change.
_VERSION = 10


def family_folder(kind: str, root: Path) -> Path:
    """The folder of a tiny model of any kind, made if it is not there."""
    if kind in KINDS:
        return tiny_model(kind, root)
    target = root / f"family-{kind}-v{_VERSION}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=root))
        write_family((FAMILIES | WEIGHTLESS | PROCESSOR_ONLY)[kind], building)
        try:
            building.rename(target)
        except OSError:
            shutil.rmtree(building)  # another process was first
    return target


def loading(kind: str) -> dict[str, Any]:
    """What the engine has to be told of a kind: that it has no weights, that two groups share its blocks."""
    drawn = {"load_format": "dummy", "trust_remote_code": True} if kind in WEIGHTLESS else {}
    return drawn | ({"num_gpu_blocks_override": 260} if kind == "gemma3" else {})


def _llava(ids: dict[str, int]) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    return LlavaConfig(
        vision_config=CLIPVisionConfig(**TOWER, image_size=168, patch_size=14),
        text_config=LlamaConfig(**TEXT),
        image_token_index=ids["<image>"],
        vision_feature_select_strategy="default",
    )


def _llava_processor(tokenizer: Any) -> Any:
    from transformers import CLIPImageProcessor, LlavaProcessor

    pictures = CLIPImageProcessor(size={"shortest_edge": 168}, crop_size={"height": 168, "width": 168})
    return LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )


_PINPOINTS = [[84, 168], [168, 84], [168, 168], [252, 84], [84, 252]]


def _llava_next(ids: dict[str, int]) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaNextConfig

    return LlavaNextConfig(
        vision_config=CLIPVisionConfig(**TOWER, image_size=84, patch_size=14),
        text_config=LlamaConfig(**TEXT),
        image_token_index=ids["<image>"],
        image_grid_pinpoints=_PINPOINTS,
        vision_feature_select_strategy="default",
    )


def _llava_next_processor(tokenizer: Any) -> Any:
    from transformers import LlavaNextImageProcessor, LlavaNextProcessor

    pictures = LlavaNextImageProcessor(
        size={"shortest_edge": 84}, crop_size={"height": 84, "width": 84}, image_grid_pinpoints=_PINPOINTS
    )
    return LlavaNextProcessor(
        pictures,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )


def _pixtral_tower(**more: Any) -> Any:
    from transformers import PixtralVisionConfig

    return PixtralVisionConfig(**TOWER, head_dim=32, **more)


def _pixtral(ids: dict[str, int]) -> Any:
    from transformers import LlavaConfig, MistralConfig

    return LlavaConfig(
        vision_config=_pixtral_tower(image_size=256, patch_size=16),
        text_config=MistralConfig(**TEXT, sliding_window=None),
        image_token_index=ids["[IMG]"],
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )


def _mistral3(ids: dict[str, int]) -> Any:
    from transformers import Mistral3Config, MistralConfig

    return Mistral3Config(
        vision_config=_pixtral_tower(image_size=448, patch_size=14),
        text_config=MistralConfig(**TEXT, sliding_window=None),
        image_token_index=ids["[IMG]"],
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )


def _pixtral_processor(longest: int, patch: int, merge: int) -> Callable[[Any], Any]:
    def make(tokenizer: Any) -> Any:
        from transformers import PixtralImageProcessor, PixtralProcessor

        pictures = PixtralImageProcessor(
            size={"longest_edge": longest}, patch_size={"height": patch, "width": patch}
        )
        return PixtralProcessor(pictures, tokenizer, patch_size=patch, spatial_merge_size=merge)

    return make


#: Below every picture of the tests: a tower that gets one tile alone fails on vLLM's CPU backend (0.32),
#: whose oneDNN product refuses the strided view of it.
_LLAMA4_TILE = 56


def _llama4(ids: dict[str, int]) -> Any:
    from transformers import Llama4Config, Llama4TextConfig, Llama4VisionConfig

    text = {**TEXT, "intermediate_size_mlp": 128, "num_local_experts": 2, "num_experts_per_tok": 1}
    vision = {**TOWER, "intermediate_size": 256, "vision_output_dim": 64}
    vision |= {"projector_input_dim": 64, "projector_output_dim": 64}
    return Llama4Config(
        vision_config=Llama4VisionConfig(**vision, image_size=_LLAMA4_TILE, patch_size=7),
        text_config=Llama4TextConfig(**text, attention_chunk_size=8192),
        image_token_index=ids["<|patch|>"],
        boi_token_index=ids["<|image_start|>"],
        eoi_token_index=ids["<|image_end|>"],
    )


def _llama4_processor(tokenizer: Any) -> Any:
    from transformers import Llama4ImageProcessor, Llama4Processor

    tile = {"height": _LLAMA4_TILE, "width": _LLAMA4_TILE}
    pictures = Llama4ImageProcessor(size=tile, max_patches=16)
    return Llama4Processor(pictures, tokenizer, patch_size=7, pixel_shuffle_ratio=0.5)


_PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
_LLAMA4_TOKENS = (
    "<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>",
    "<|tile_x_separator|>", "<|tile_y_separator|>",
)  # fmt: skip
_CLIP_WEIGHTS = ("vision_tower.", "vision_tower.vision_model.")

#: Run on the engine.
FAMILIES = {
    "pixtral": Family(
        _PIXTRAL_TOKENS, "[IMG]", _pixtral, "LlavaForConditionalGeneration", _pixtral_processor(256, 16, 1)
    ),
    "mistral3": Family(
        _PIXTRAL_TOKENS,
        "[IMG]",
        _mistral3,
        "Mistral3ForConditionalGeneration",
        _pixtral_processor(448, 14, 2),
    ),
    "llava": Family(
        ("<image>",), "<image>", _llava, "LlavaForConditionalGeneration", _llava_processor, _CLIP_WEIGHTS
    ),
    "llava_next": Family(
        ("<image>",),
        "<image>",
        _llava_next,
        "LlavaNextForConditionalGeneration",
        _llava_next_processor,
        _CLIP_WEIGHTS,
    ),
    "llama4": Family(
        _LLAMA4_TOKENS, "<|image|>", _llama4, "Llama4ForConditionalGeneration", _llama4_processor
    ),
}
