from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import app.tiny_models as tiny_models
from app.tiny_kinds import TINY_KINDS
from app.tiny_models import KINDS, tiny_model
from app.tiny_tokenizer import SPECIALS, VOCAB_SIZE, spoken_ids, token_id
from processors import ModelFiles, layout_for

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tokenizer(root):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model("qwen3_vl", root))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def render(tokenizer, messages, add_generation_prompt=True) -> str:
    return tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=add_generation_prompt
    )


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_makes_equal_files_and_another_seed_other_weights(kind, root, tmp_path):
    first, again = files(tiny_model(kind, root)), files(tiny_model(kind, tmp_path))
    assert first == again
    other = files(tiny_model(kind, tmp_path, seed=1))
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_about_a_megabyte(kind, root):
    assert 0.5e6 < sum(len(content) for content in files(tiny_model(kind, root)).values()) < 1.5e6


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_the_family_and_its_processor(kind, root):
    from transformers import AutoConfig, AutoProcessor

    folder = tiny_model(kind, root)
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == kind
    assert config.text_config.max_position_embeddings == 32768
    processor = type(AutoProcessor.from_pretrained(folder)).__name__
    assert processor == TINY_KINDS[kind].processor


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "least", "most"), [((200, 200), 30, 150), ((20, 20), 1, 4), ((4000, 3000), 1100, 1280)]
)
def test_a_picture_has_as_many_tokens_as_its_size_says(kind, size, least, most, root):
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(tiny_model(kind, root))
    inputs = processor(text=[IMAGE], images=[Image.new("RGB", size, "red")], return_tensors="np")
    assert least <= int((inputs["input_ids"] == token_id("<|image_pad|>")).sum()) <= most


def test_a_model_that_is_there_is_kept(tmp_path, root):
    folder = tiny_model("qwen2_vl", tmp_path)
    (folder / "mark").touch()
    assert tiny_model("qwen2_vl", tmp_path) == folder
    assert (folder / "mark").exists()


def test_a_build_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def no_room(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tiny_models, "_write_weights", no_room)
    with pytest.raises(OSError, match="No space"):
        tiny_model("qwen2_vl", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_two_builders_at_once_the_first_one_s_folder_is_kept(tmp_path, monkeypatch):
    def overtaken(kind, folder, seed, with_weights):
        (folder / "mine").touch()
        target = tmp_path / f"qwen2_vl-0-v{tiny_models._VERSION}"
        target.mkdir()
        (target / "theirs").touch()

    monkeypatch.setattr(tiny_models, "_write", overtaken)
    folder = tiny_model("qwen2_vl", tmp_path)
    assert list(files(folder)) == ["theirs"]
    assert list(tmp_path.iterdir()) == [folder]


def test_without_weights_it_is_the_same_model_to_all_who_read_no_weights(tmp_path):
    whole, light = (ModelFiles.load(tiny_model("qwen3_vl", tmp_path, with_weights=w)) for w in (True, False))
    assert light.tokenizer.get_vocab() == whole.tokenizer.get_vocab()
    assert light.model_type == whole.model_type and light.max_model_len == whole.max_model_len
    layouts = [layout_for(files) for files in (light, whole)]
    assert len({layout.fingerprint(layout.modalities) for layout in layouts}) == 1
    assert "model.safetensors" not in files(tiny_model("qwen3_vl", tmp_path, with_weights=False))


def test_an_unknown_kind_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="qwen3_vl, qwen2_5_vl, qwen2_vl"):
        tiny_model("llava", tmp_path)


def test_every_special_is_one_token(tokenizer):
    assert [ids(tokenizer, special) for special in SPECIALS] == [[i] for i in range(len(SPECIALS))]


def test_any_text_survives_the_tokenizer(tokenizer):
    text = "Thé 日本 \N{GRINNING FACE}\n\n  tab\t0123 don't"
    assert tokenizer.decode(ids(tokenizer, text)) == text
    assert len(tokenizer) == VOCAB_SIZE


def test_what_a_model_says_comes_back_to_the_same_tokens(tokenizer):
    random = np.random.default_rng(0)
    for _ in range(50):
        said = random.choice(spoken_ids(), size=40).tolist()
        assert ids(tokenizer, tokenizer.decode(said)) == said


def test_only_words_are_said(root):
    from safetensors.torch import load_file

    for kind in KINDS:
        head = load_file(tiny_model(kind, root) / "model.safetensors")["lm_head.weight"]
        assert head.abs().sum(dim=1).nonzero().flatten().tolist() == sorted(spoken_ids())


def test_turn_two_begins_with_turn_one_and_its_answer(tokenizer):
    first = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "What is this?"}]},
    ]
    said = spoken_ids()[3:30]
    answer = {"role": "assistant", "content": tokenizer.decode(said)}
    turn_one = render(tokenizer, first)
    turn_two = render(tokenizer, [*first, answer, {"role": "user", "content": "And this?"}])
    assert turn_two.startswith(turn_one)
    expected = [*ids(tokenizer, turn_one), *said, token_id("<|im_end|>"), *ids(tokenizer, "\n")]
    assert ids(tokenizer, turn_two)[: len(expected)] == expected


def test_the_template_writes_every_role_and_both_forms_of_content(tokenizer):
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "S"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "T"},
        {"role": "assistant", "content": "A"},
    ]
    assert render(tokenizer, messages, add_generation_prompt=False) == (
        "<|im_start|>system\nS<|im_end|>\n"
        f"<|im_start|>user\na{IMAGE}b<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nT\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nA<|im_end|>\n"
    )
