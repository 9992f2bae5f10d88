"""Tiny random-weight models of the families beside Qwen, made with transformers' own classes.

Their tokenizer is that of `app.tiny_models`, with the family's own special tokens added after its end.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.tiny_models import KINDS, tiny_model
from app.tiny_tokenizer import CHAT_TEMPLATE, VOCAB_SIZE, write_tokenizer

_KIMI_GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "kimi_k25.json"
#: In the folder's name: raise it when the files change.
_VERSION = 3
_QWEN_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
#: Room for the added tokens.
_VOCAB = VOCAB_SIZE + 64

_TEXT = {
    "vocab_size": _VOCAB,
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
_TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True, slots=True)
class Family:
    """tokens: special tokens, at ids from `VOCAB_SIZE` on. picture: what the chat template writes.

    model_class: None for a configuration without weights.
    weights: a prefix of weights' names as transformers 5 saves them, and as checkpoints and vLLM have it.
    """

    tokens: tuple[str, ...]
    picture: str
    config: Callable[[dict[str, int]], Any]
    model_class: str | None
    processor: Callable[[Any], Any]
    weights: tuple[str, str] | None = None


def family_folder(kind: str, root: Path) -> Path:
    """The folder of a tiny model of any kind, made if it is not there."""
    if kind in KINDS:
        return tiny_model(kind, root)
    target = root / f"family-{kind}-v{_VERSION}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=root))
        _write((FAMILIES | PROCESSOR_ONLY)[kind], building)
        try:
            building.rename(target)
        except OSError:
            shutil.rmtree(building)  # another process was first
    return target


def _write(family: Family, folder: Path) -> None:
    import torch
    import transformers

    write_tokenizer(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([transformers.AddedToken(token, special=True) for token in family.tokens])
    tokenizer.chat_template = CHAT_TEMPLATE.replace(_QWEN_PICTURE, family.picture)
    tokenizer.save_pretrained(folder)
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


def _rename(file: Path, old: str, new: str) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    renamed = {new + name[len(old) :] if name.startswith(old) else name: w for name, w in weights.items()}
    save_file(renamed, file, metadata={"format": "pt"})


def _llava(ids: dict[str, int]) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    return LlavaConfig(
        vision_config=CLIPVisionConfig(**_TOWER, image_size=168, patch_size=14),
        text_config=LlamaConfig(**_TEXT),
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
        vision_config=CLIPVisionConfig(**_TOWER, image_size=84, patch_size=14),
        text_config=LlamaConfig(**_TEXT),
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

    return PixtralVisionConfig(**_TOWER, head_dim=32, **more)


def _pixtral(ids: dict[str, int]) -> Any:
    from transformers import LlavaConfig, MistralConfig

    return LlavaConfig(
        vision_config=_pixtral_tower(image_size=256, patch_size=16),
        text_config=MistralConfig(**_TEXT, sliding_window=None),
        image_token_index=ids["[IMG]"],
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )


def _mistral3(ids: dict[str, int]) -> Any:
    from transformers import Mistral3Config, MistralConfig

    return Mistral3Config(
        vision_config=_pixtral_tower(image_size=448, patch_size=14),
        text_config=MistralConfig(**_TEXT, sliding_window=None),
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

    text = {**_TEXT, "intermediate_size_mlp": 128, "num_local_experts": 2, "num_experts_per_tok": 1}
    vision = {**_TOWER, "intermediate_size": 256, "vision_output_dim": 64}
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


def _glm4v(ids: dict[str, int]) -> Any:
    from transformers import Glm4vConfig

    text = {
        **_TEXT,
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

    text = {"model_type": "deepseek_v3", **_TEXT, "num_key_value_heads": 2}
    return Kimi_K25Config(
        architectures=["KimiK25ForConditionalGeneration"],
        text_config=text,
        image_token_id=ids["<|media_pad|>"],
    )


def _kimi_processor(tokenizer: Any) -> Any:
    from transformers.image_processing_utils import BaseImageProcessor

    return BaseImageProcessor(media_proc_cfg=json.loads(_KIMI_GOLDEN.read_text())["meta"]["media_proc_cfg"])


_PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
_LLAMA4_TOKENS = (
    "<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>",
    "<|tile_x_separator|>", "<|tile_y_separator|>",
)  # fmt: skip
_GLM_TOKENS = (
    "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>",
    "<|begin_of_video|>", "<|end_of_video|>",
)  # fmt: skip

_KIMI_TOKENS = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")

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

#: Compared with the installed processor only.
PROCESSOR_ONLY = {
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
        _kimi_processor,
    ),
}
