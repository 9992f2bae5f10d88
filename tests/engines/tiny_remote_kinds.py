"""Tiny models whose configuration is code of their own: InternVL in OpenGVLab's format, Nemotron Omni."""

from __future__ import annotations

import json
from typing import Any

from tests.engines.tiny_family import GOLDEN, TEXT, TOWER, Family, WrittenConfig, no_processor

_INTERNVL_CODE = """from transformers import CONFIG_MAPPING, PretrainedConfig


class InternVLChatConfig(PretrainedConfig):
    model_type = "internvl_chat"
    is_composition = True

    def __init__(self, vision_config=None, llm_config=None, **kwargs):
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        text = dict(llm_config or {"model_type": "qwen2"})
        self.llm_config = CONFIG_MAPPING[text.pop("model_type")](**text)
        super().__init__(**kwargs)

    def get_text_config(self, **kwargs):
        return self.llm_config
"""


_NEMOTRON_CODE = """from transformers import CONFIG_MAPPING, PretrainedConfig


class NemotronConfig(PretrainedConfig):
    model_type = "NemotronH_Nano_VL_V2"
    is_composition = True

    def __init__(self, vision_config=None, llm_config=None, **kwargs):
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        text = dict(llm_config or {"model_type": "nemotron_h"})
        self.text_config = CONFIG_MAPPING[text.pop("model_type")](**text)
        super().__init__(**kwargs)

    def get_text_config(self, **kwargs):
        return self.text_config
"""

#: As in OpenGVLab's own files.
_INTERN_TOWER = {
    "hidden_act": "gelu",
    "norm_type": "layer_norm",
    "layer_norm_eps": 1e-6,
    "initializer_factor": 1.0,
    "qkv_bias": True,
    "qk_normalization": False,
}


def _internvl_chat(ids: dict[str, int]) -> Any:
    return WrittenConfig(
        model_type="internvl_chat",
        architectures=["InternVLChatModel"],
        auto_map={"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
        vision_config={**TOWER, **_INTERN_TOWER, "image_size": 112, "patch_size": 14},
        llm_config={"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **TEXT},
        select_layer=-1,
        force_image_size=112,
        downsample_ratio=0.5,
        min_dynamic_patch=1,
        max_dynamic_patch=6,
        dynamic_image_size=True,
        use_thumbnail=True,
        ps_version="v2",
    )


def _nemotron(ids: dict[str, int]) -> Any:
    golden = json.loads((GOLDEN / "nemotron_omni.json").read_text())["meta"]["config"]
    text = {**TEXT, "hybrid_override_pattern": "*-*-", "num_hidden_layers": 4}
    return WrittenConfig(
        model_type="NemotronH_Nano_VL_V2",
        architectures=["NemotronH_Nano_VL_V2"],
        auto_map={"AutoConfig": "configuration_nemotron.NemotronConfig"},
        llm_config={"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], **text},
        img_context_token_id=ids["<image>"],
        img_context_token="<image>",
        img_start_token="<img>",
        img_end_token="</img>",
        use_thumbnail=True,
        norm_mean=[0.5] * 3,
        norm_std=[0.5] * 3,
        **golden,
    )


#: One token, as in the real vocabularies: a placeholder before it is not found by its own ids.
_END_OF_TAG = ">\n"

INTERNVL_CHAT = Family(
    ("<img>", "</img>", "<IMG_CONTEXT>"),
    "<image>",
    _internvl_chat,
    None,
    no_processor,
    more=(_END_OF_TAG,),
    code={"configuration_internvl_chat.py": _INTERNVL_CODE},
)


NEMOTRON = Family(
    ("<image>", "<img>", "</img>"),
    "<image>",
    _nemotron,
    None,
    no_processor,
    more=(_END_OF_TAG,),
    code={"configuration_nemotron.py": _NEMOTRON_CODE},
)
