"""Placeholders that are text: where they stand, in a prompt tokenized anew, and who may write them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from golden import golden
from picture_files import encoded, picture
from test_prompt import Builders, ask, builders, folder
from tiny_files import TEMPLATE, TEXT_TEMPLATE, VIDEO_PAD, tiny_folder, tiny_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from processors import Refusal, RequestError
from processors.families.text_placeholders import expand_text
from processors.layout import Replacement
from sightline_types import DegradeReason

__all__ = ["builders", "folder"]  # fixtures

SMALL = encoded(picture(width=112, height=112), "PNG")
#: Of a template that has videos, too.
CLIP_BRANCH = "{%- elif part.type == 'video' %}\n{{- '<|video_pad|>' }}\n"
TEXT_BRANCH = "{%- else %}\n{{- part.text }}"
START, PAD, END = 90, 91, 92
PICTURE = Replacement(np.array([START, PAD, PAD, END], dtype=np.int64))
UNKNOWN = Refusal(DegradeReason.SIZE_UNKNOWN)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, but for `>` before a line's end."""
    letters = {chr(code): code for code in range(32, 90)} | {chr(code): 100 + code for code in range(90, 127)}
    special = {"[start]": START, "[pad]": PAD, "[end]": END}
    made = Tokenizer(models.WordLevel({"?": 1, "\n": 10, ">\n": 11, **letters, **special}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(">\n|[\\s\\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=made)


def test_where_its_own_ids_are_found_they_are_replaced(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("a<image> b<image>")
    expansion = expand_text(tokenizer, ids, "<image>", [PICTURE, PICTURE], PAD)
    wanted = tokenizer.encode("a[start][pad][pad][end] b[start][pad][pad][end]")
    assert expansion.token_ids.tolist() == wanted
    assert [(p.index, p.offset, p.length) for p in expansion.placed] == [(0, 1, 4), (1, 7, 4)]
    assert expansion.exact_until == len(wanted)


def test_where_they_are_not_the_prompt_is_tokenized_anew(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("a<image>\n<image>b")
    expansion = expand_text(tokenizer, ids, "<image>", [PICTURE, PICTURE], PAD)
    assert expansion.token_ids.tolist() == tokenizer.encode(
        "a[start][pad][pad][end]\n[start][pad][pad][end]b"
    )
    assert [(p.offset, p.length) for p in expansion.placed] == [(1, 4), (6, 4)]


@pytest.mark.parametrize("text", ["a<image>b<image>c", "a<image>\nb<image>c"])
def test_a_refused_item_ends_what_is_exact(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    expansion = expand_text(tokenizer, tokenizer.encode(text), "<image>", [PICTURE, UNKNOWN], PAD)
    before = tokenizer.encode(text.replace("<image>", "[start][pad][pad][end]", 1).split("<image>")[0])
    assert expansion.token_ids.tolist()[: expansion.exact_until] == before
    assert len(expansion.token_ids) > expansion.exact_until
    assert [p.index for p in expansion.placed] == [0]


@pytest.mark.parametrize("text", ["none", "<image><image>", "<image>\n<image>\n"])
def test_another_number_of_texts_than_items_is_an_error(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    with pytest.raises(ValueError, match="placeholders for 1 media items"):
        expand_text(tokenizer, tokenizer.encode(text), "<image>", [PICTURE], PAD)


def test_without_a_tokenizer_it_cannot_be_told() -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        expand_text(None, [1], "<image>", [PICTURE], PAD)


# In a request


def internvl_folder(path: Path) -> Path:
    """InternVL as OpenGVLab ships it: a template of text only, and a placeholder that is text."""
    tokenizer = tiny_tokenizer(TEXT_TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<img>", "</img>", "<IMG_CONTEXT>"]})
    tokenizer.save_pretrained(path)
    config = {
        "model_type": "internvl_chat",
        "vision_config": {"image_size": 56, "patch_size": 14},
        "downsample_ratio": 0.5,
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 4,
        "use_thumbnail": True,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


async def test_a_template_of_text_only_gets_the_familys_text_for_each_picture(
    tmp_path: Path, builders: Builders
) -> None:
    builder = builders(internvl_folder(tmp_path))
    prompt = await builder.prepare(ask("which?", SMALL, SMALL))
    text = builder._template._tokenizer.decode(prompt.token_ids)  # what the engine is given
    assert text.startswith("<|im_start|>user\n<image>\n<image>\nwhich?<|im_end|>")
    assert prompt.is_exact
    assert [span.length for span in prompt.view.spans] == [(4 + 1) * 4 + 2] * 2


async def test_a_placeholder_that_a_client_wrote_is_refused_beside_media(
    tmp_path: Path, builders: Builders
) -> None:
    builder = builders(internvl_folder(tmp_path))
    with pytest.raises(RequestError, match="hold <image>") as caught:
        await builder.prepare(ask("my <image> is", SMALL))
    assert (caught.value.status, caught.value.code) == (400, "placeholder_mismatch")
    with pytest.raises(RequestError, match="leave it out"):
        await builder.prepare(ask("my <ima", SMALL, "ge> is"))
    assert (await builder.prepare(ask("my <image> is"))).is_exact


async def test_a_clip_of_a_family_that_lays_out_pictures_only_is_served_by_name(
    tmp_path: Path, builders: Builders
) -> None:
    template = TEMPLATE.replace(TEXT_BRANCH, CLIP_BRANCH + TEXT_BRANCH)
    folder = tiny_folder(tmp_path, "glm4v", template=template, preprocessor={"patch_size": 14})
    builder = builders(folder)
    (turn,) = ask("see ", SMALL, " and ")
    turn["content"].append({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}})
    prompt = await builder.prepare([turn])
    assert prompt.token_ids.count(VIDEO_PAD) == 1
    assert prompt.reasons == (DegradeReason.VIDEO_DECODED_BY_ENGINE,)
    (span,) = prompt.view.spans  # the picture keeps its credit
    assert prompt.view.exact_until > span.end
    assert prompt.view.token_ids[prompt.view.exact_until] == VIDEO_PAD


async def test_without_a_max_model_len_pictures_are_sized_by_the_models_own(
    tmp_path: Path, builders: Builders
) -> None:
    template = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    tokenizer = tiny_tokenizer(template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "<img>", "</img>"]})
    tokenizer.save_pretrained(tmp_path)
    config = golden("nemotron_omni")["meta"]["config"]
    config = {**config, "model_type": "NemotronH_Nano_VL_V2", "llm_config": {"max_position_embeddings": 4096}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    prompt = await builders(tmp_path).prepare(ask(SMALL))
    assert prompt.is_exact and "max_model_len=4096" in str(prompt.layout)


async def test_numbered_placeholders_count_the_pictures_of_all_messages(
    tmp_path: Path, builders: Builders
) -> None:
    tokenizer = tiny_tokenizer(TEXT_TEMPLATE)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "phi3_v"}')
    (tmp_path / "preprocessor_config.json").write_text('{"num_crops": 4}')
    builder = builders(tmp_path)
    prompt = await builder.prepare([*ask("one", SMALL), *ask(SMALL, "two")])
    text = tokenizer.decode(prompt.token_ids)
    assert "user\n<|image_1|>\none" in text and "user\n<|image_2|>\ntwo" in text
    with pytest.raises(RequestError, match=r"<\|image_7\|>"):
        await builder.prepare(ask("<|image_7|>", SMALL))
