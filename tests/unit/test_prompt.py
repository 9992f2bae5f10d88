"""A chat request made ready, with a tiny model's files and real pictures."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from golden import files, known_layout
from origin_server import Answer, Origin, origin
from picture_files import corpus, encoded, picture
from tiny_files import IMAGE_PAD, TEMPLATE, VIDEO_PAD, tiny_folder

from processors import (
    FamilyLayout,
    Fetcher,
    MediaConfig,
    ModelFiles,
    PromptBuilder,
    RequestError,
    UnsupportedMedia,
    decode_image,
)
from processors.processor_kwargs import check_processor_kwargs, edges_are_areas
from processors.template import ChatTemplate
from sightline_types import DegradeReason, ImageSize, PreparedPrompt

Prepare = Callable[..., Awaitable[PreparedPrompt]]

#: 4 x 4 and 5 x 3 tokens for Qwen2-VL.
SMALL, WIDE = encoded(picture(width=112, height=112), "PNG"), encoded(picture(width=140, height=84), "PNG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"), "qwen2_vl")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Origin]:
    async with origin() as running:
        running.answers |= {"/small": Answer(SMALL), "/wide": Answer(WIDE)}
        yield running


class Builders:
    """Makes builders and closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.made: list[PromptBuilder] = []

    def __call__(
        self, folder: Path | None = None, *, enable_multimodal: bool = True, **settings: Any
    ) -> PromptBuilder:
        media = MediaConfig(
            **{
                "allow_private_addresses": True,
                "probe_timeout_ms": 10000,
                "probe_budget_ms": 10000,
                **settings,
            }
        )
        files = ModelFiles.load(folder or self.folder)
        fetcher = Fetcher(media, clock=self.clock)
        builder = PromptBuilder(
            files, media, enable_multimodal=enable_multimodal, fetcher=fetcher, clock=self.clock
        )
        self.made.append(builder)
        return builder

    def clock(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def builders(folder: Path) -> AsyncIterator[Builders]:
    made = Builders(folder)
    yield made
    for builder in made.made:
        await builder.aclose()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def ask(*parts: str | bytes) -> list[dict[str, Any]]:
    """One user turn: bytes are pictures as data: URLs, "http..." a picture by URL, other text is text."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, bytes) or part.startswith("http"):
            url = data_url(part) if isinstance(part, bytes) else part
            content.append({"type": "image_url", "image_url": {"url": url}})
        else:
            content.append({"type": "text", "text": part})
    return [{"role": "user", "content": content}]


def pads(prompt: PreparedPrompt) -> int:
    return prompt.token_ids.count(IMAGE_PAD)


# Exact views


async def test_text_alone_is_exact_and_needs_no_layout(builders: Builders) -> None:
    prompt = await builders().prepare([{"role": "user", "content": "hello"}])
    assert prompt.is_exact
    assert prompt.view.token_ids.tolist() == list(prompt.token_ids)
    assert prompt.view.token_ids.dtype == np.int64
    assert (prompt.media, prompt.layout) == ((), None)


async def test_a_picture_is_expanded_for_routing_only(builders: Builders) -> None:
    prompt = await builders().prepare(ask("look ", SMALL, " here"))
    (span,) = prompt.view.spans
    assert pads(prompt) == 1
    assert span.length == 16
    assert prompt.view.token_ids[span.offset : span.end].tolist() == [IMAGE_PAD] * 16
    assert span.offset == prompt.token_ids.index(IMAGE_PAD)
    assert prompt.num_tokens == len(prompt.view) == len(prompt.token_ids) + 15
    assert prompt.is_exact and prompt.layout is not None


async def test_items_keep_their_order_and_their_spans(builders: Builders) -> None:
    prompt = await builders().prepare(ask(WIDE, SMALL, "which?"))
    assert [item.size for item in prompt.media] == [ImageSize(140, 84), ImageSize(112, 112)]
    assert [item.num_tokens for item in prompt.media] == [15, 16]
    assert [span.media_id for span in prompt.view.spans] == [item.media_id for item in prompt.media]


async def test_swapped_pictures_are_another_prompt(builders: Builders) -> None:
    one, two = await builders().prepare(ask(SMALL, WIDE)), await builders().prepare(ask(WIDE, SMALL))
    assert [i.media_id for i in one.media] == [i.media_id for i in reversed(two.media)]
    assert one.view.spans != two.view.spans


async def test_a_picture_on_its_side_counts_upright(builders: Builders) -> None:
    turned = await builders().prepare(ask(corpus()["jpeg-turned-6"]))
    assert turned.media[0].size == ImageSize(23, 37)


async def test_a_format_without_a_header_reader_is_measured_by_decoding(builders: Builders) -> None:
    prompt = await builders().prepare(ask(encoded(picture(width=112, height=112), "PPM")))
    assert prompt.media[0].size == ImageSize(112, 112)
    assert prompt.is_exact


async def test_the_first_turn_ends_after_its_expanded_picture(builders: Builders) -> None:
    first = await builders().prepare(ask(SMALL, "what?"), add_generation_prompt=False)
    more = [*ask(SMALL, "what?"), {"role": "assistant", "content": "a cat"}, *ask(WIDE, "and this?")]
    prompt = await builders().prepare(more)
    assert prompt.first_turn_tokens == len(first.view)
    assert prompt.view.token_ids[: len(first.view)].tolist() == first.view.token_ids.tolist()


# Identities


async def test_a_data_url_counts_by_its_bytes_not_by_its_spelling(builders: Builders) -> None:
    builder = builders(identity="url")
    percent = "data:," + "".join(f"%{byte:02x}" for byte in SMALL)
    spelled = [{"role": "user", "content": [{"type": "image_url", "image_url": percent}]}]
    one, two = await builder.prepare(ask(SMALL)), await builder.prepare(spelled)
    assert one.media[0].media_id == two.media[0].media_id
    assert (one.media[0].identity_mode, one.media[0].source.data) == ("bytes", SMALL)


async def test_a_url_is_one_picture_until_its_time_is_over(builders: Builders, server: Origin) -> None:
    builder = builders(url_identity_ttl_s=100)
    ids = []
    for builders.now in (0.0, 99.0, 100.0):
        prompt = await builder.prepare(ask(server.url("/small")))
        ids.append(prompt.media[0].media_id)
    assert ids[0] == ids[1] != ids[2]
    assert prompt.media[0].source.url == server.url("/small")
    assert prompt.media[0].num_tokens == 16


async def test_two_urls_of_one_file_are_one_picture_by_bytes(builders: Builders, server: Origin) -> None:
    server.answers["/copy"] = Answer(SMALL)
    builder = builders(identity="bytes")
    prompt = await builder.prepare(ask(server.url("/small"), server.url("/copy"), SMALL))
    assert len({item.media_id for item in prompt.media}) == 1
    assert prompt.media[0].source.data == SMALL


async def test_two_encodings_of_one_picture_are_one_by_content(builders: Builders, server: Origin) -> None:
    server.answers["/bmp"] = Answer(encoded(picture(width=112, height=112), "BMP"))
    prompt = await builders(identity="content").prepare(ask(SMALL, server.url("/bmp"), WIDE))
    ids = [item.media_id for item in prompt.media]
    assert ids[0] == ids[1] != ids[2]


async def test_content_gives_the_engine_the_pixels_that_were_named(builders: Builders) -> None:
    prompt = await builders(identity="content").prepare(ask(SMALL))
    pixels = prompt.media[0].source.pixels
    assert pixels is not None and pixels.flags.c_contiguous and pixels.dtype == np.uint8
    assert np.array_equal(pixels, np.asarray(decode_image(SMALL, max_pixels=10**6)))
    assert prompt.media[0].source.data is None


async def test_a_secret_gives_another_identity(builders: Builders) -> None:
    plain, secret = (
        await builders().prepare(ask(SMALL)),
        await builders(identity_secret="x").prepare(ask(SMALL)),
    )
    assert plain.media[0].media_id != secret.media[0].media_id


# Less than exact, by name


async def test_an_unknown_size_keeps_what_comes_before_exact(builders: Builders, server: Origin) -> None:
    server.answers["/odd"] = Answer(b"no picture that is known")
    prompt = await builders().prepare(ask("see ", SMALL, server.url("/odd"), WIDE))
    exact = await builders().prepare(ask("see ", SMALL, SMALL, WIDE))
    assert prompt.reasons == (DegradeReason.SIZE_UNKNOWN,)
    assert prompt.view.exact_until == exact.view.spans[1].offset
    assert [item.num_tokens for item in prompt.media] == [16, None, 15]
    assert prompt.view.spans[0] == exact.view.spans[0]
    assert not prompt.is_exact


async def test_an_unknown_item_counts_as_load(builders: Builders, server: Origin) -> None:
    prompt = await builders().prepare(ask(server.url("/none"), server.url("/none")))
    assert prompt.estimated_media_tokens == 2 * 1023
    assert prompt.num_tokens == len(prompt.token_ids) + 2 * 1023


async def test_a_size_that_the_model_refuses_is_named(builders: Builders) -> None:
    prompt = await builders().prepare(ask(encoded(picture(width=402, height=2), "PNG")))
    assert prompt.reasons == (DegradeReason.SIZE_REFUSED,)
    assert prompt.media[0].size == ImageSize(402, 2)


async def test_processor_arguments_leave_only_the_text_before_the_first_picture(builders: Builders) -> None:
    exact = await builders().prepare(ask("see ", SMALL, WIDE))
    prompt = await builders().prepare(ask("see ", SMALL, WIDE), mm_processor_kwargs={"max_pixels": 9})
    assert prompt.reasons == (DegradeReason.MM_PROCESSOR_KWARGS,)
    assert prompt.view.exact_until == exact.view.spans[0].offset
    assert prompt.view.spans == ()
    assert prompt.num_tokens == exact.num_tokens  # estimated by the model's own limits


async def test_processor_arguments_are_named_without_a_picture_too(builders: Builders) -> None:
    prompt = await builders().prepare(ask("hello"), mm_processor_kwargs={"max_pixels": 9})
    assert prompt.reasons == (DegradeReason.MM_PROCESSOR_KWARGS,)
    assert prompt.view.exact_until == len(prompt.view)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patch_size", 7),  # the engine's process would end at it
        ("images", 1),
        ("x" * 5000, 1),
        ("min_pixels", 1 << 40),
        ("max_pixels", -1),
        ("max_pixels", "many"),
        ("max_pixels", [1]),
        ("size", {"shortest_edge": 1 << 40}),
        ("size", {"longest_edge": {"a": {"b": 1}}}),
        ("size", {"height": 20_000, "width": 20_000}),
        ("max_patches", 65),
        ("num_frames", 100_000),
        ("max_dynamic_patch", 1 << 24),
    ],
)
async def test_processor_arguments_that_could_harm_the_engine_are_refused(
    builders: Builders, name: str, value: object
) -> None:
    with pytest.raises(RequestError) as caught:
        await builders().prepare(ask(SMALL), mm_processor_kwargs={name: value})
    assert caught.value.status == 400
    assert caught.value.param == f"mm_processor_kwargs.{name[:40]}"


async def test_processor_arguments_take_a_size(builders: Builders) -> None:
    size = {"shortest_edge": 65536, "longest_edge": 1048576}
    assert not (await builders().prepare(ask(SMALL), mm_processor_kwargs={"size": size})).is_exact


@pytest.mark.parametrize(
    ("layout", "own", "areas"),
    [
        (None, {}, False),
        (None, {"size": {"shortest_edge": 336}}, False),
        (None, {"min_pixels": 65536}, True),
        (known_layout(files({"model_type": "qwen2_vl", "image_token_id": 9})), {}, True),
        (known_layout(files({"model_type": "llava", "image_token_index": 9})), {}, False),
    ],
)
def test_an_edge_of_a_size_is_a_side_but_where_the_model_means_an_area(
    layout: FamilyLayout | None, own: dict[str, object], areas: bool
) -> None:
    """A processor that is told of sides of 16 million pixels makes such a picture."""
    assert edges_are_areas(layout, own) is areas
    kwargs = {"size": {"shortest_edge": 1 << 20, "longest_edge": 1 << 24}}
    if areas:
        check_processor_kwargs(kwargs, edges_are_areas=areas)
        return
    with pytest.raises(RequestError, match="from 0 to 4096"):
        check_processor_kwargs(kwargs, edges_are_areas=areas)


async def test_empty_processor_arguments_are_none(builders: Builders) -> None:
    assert (await builders().prepare(ask(SMALL), mm_processor_kwargs={})).is_exact


async def test_another_family_is_routed_by_the_text_before(builders: Builders, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "other", "some_vl")
    prompt = await builders(folder).prepare(ask("see ", SMALL))
    assert prompt.reasons == (DegradeReason.UNSUPPORTED_FAMILY,)
    assert prompt.view.exact_until == prompt.token_ids.index(IMAGE_PAD)
    assert prompt.layout is None
    assert prompt.estimated_media_tokens == 1023


async def test_another_family_with_unknown_placeholders_earns_nothing(
    builders: Builders, tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path / "odd", "odd_vl", image_token=None)
    prompt = await builders(folder).prepare(ask("see ", SMALL))
    assert prompt.view.exact_until == 0
    assert prompt.reasons == (DegradeReason.UNSUPPORTED_FAMILY,)


async def test_another_family_that_writes_its_placeholder_twice_earns_nothing(
    builders: Builders, tmp_path: Path
) -> None:
    template = TEMPLATE.replace("<|image_pad|>", "<|image_pad|><|image_pad|>")
    folder = tiny_folder(tmp_path / "odd", "odd_vl", template=template)
    assert (await builders(folder).prepare(ask("see ", SMALL))).view.exact_until == 0


# What the user did wrong


async def refusal(work: Awaitable[PreparedPrompt]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await work
    return caught.value


@pytest.mark.parametrize(
    "parts", [("a <|image_pad|> b",), ("a <|image_pad|> b", SMALL), ("a <|video_pad|>", SMALL)]
)
async def test_a_placeholder_written_as_text_is_text(builders: Builders, parts: Any) -> None:
    prompt = await builders().prepare(ask(*parts))
    assert prompt.is_exact
    assert (pads(prompt), prompt.token_ids.count(VIDEO_PAD)) == (len(parts) - 1, 0)


async def test_a_template_that_writes_another_number_of_placeholders_is_named(
    tmp_path: Path, builders: Builders
) -> None:
    twice = TEMPLATE.replace("<|image_pad|>", "<|image_pad|><|image_pad|>")
    folder = tiny_folder(tmp_path / "twice", "qwen2_vl", template=twice)
    error = await refusal(builders(folder).prepare(ask(SMALL)))
    assert (error.status, error.code) == (400, "placeholder_mismatch")
    assert "<|image_pad|>" in error.message


async def test_the_failing_part_is_named(builders: Builders, server: Origin) -> None:
    messages = ask("see", SMALL, server.url("/gone"))
    error = await refusal(builders(identity="bytes").prepare(messages))
    assert error.status == 404
    assert error.param == "messages[0].content[2].image_url"


async def test_media_on_a_text_only_deployment_are_refused(builders: Builders) -> None:
    error = await refusal(builders(enable_multimodal=False).prepare(ask(SMALL)))
    assert "enable_multimodal" in error.message


@pytest.mark.parametrize("identity", ["bytes", "content"])
async def test_what_is_no_picture_is_refused(builders: Builders, identity: str) -> None:
    error = await refusal(builders(identity=identity).prepare(ask(b"just text")))
    assert isinstance(error, UnsupportedMedia) and error.status == 415


@pytest.mark.parametrize("identity", ["url", "bytes", "content"])
async def test_too_many_pixels_are_refused_before_routing(
    builders: Builders, server: Origin, identity: str
) -> None:
    builder = builders(identity=identity, max_pixels=112 * 112 - 1)
    error = await refusal(builder.prepare(ask(server.url("/small"))))
    assert error.status == 400 and "media.max_pixels" in error.message


async def test_one_failing_item_ends_the_others(builders: Builders, server: Origin) -> None:
    server.answers["/slow"] = Answer(SMALL, stall_s=60)
    error = await refusal(builders(identity="bytes").prepare(ask(server.url("/slow"), server.url("/gone"))))
    assert error.status == 404


async def test_items_are_fetched_at_the_same_time(builders: Builders, server: Origin) -> None:
    """Each of two answers waits until the other was asked for."""
    paths: list[str] = []
    both = asyncio.Event()
    serve = server._send

    async def together(writer: Any, answer: Answer, wanted: str | None) -> None:
        paths.append("asked")
        if len(paths) == 2:
            both.set()
        await both.wait()
        await serve(writer, answer, wanted)

    server._send = together  # type: ignore[method-assign]
    prompt = await builders(identity="bytes").prepare(ask(server.url("/small"), server.url("/wide")))
    assert len(prompt.media) == 2


LONG = "many words " * 300
CALL = {"type": "function", "function": {"name": "f", "arguments": {"text": LONG}}}


@pytest.mark.parametrize(
    ("turn", "more", "is_here"),
    [
        ({"content": "short"}, {}, True),
        ({"content": "short"}, {"tools": [{"type": "function", "function": {"name": "f"}}]}, True),
        ({"content": LONG}, {}, False),
        ({"content": [{"type": "text", "text": LONG}]}, {}, False),
        ({"content": "short"}, {"tools": [{"type": "function", "function": {"name": LONG}}]}, False),
        ({"content": "short"}, {"chat_template_kwargs": {"hint": LONG}}, False),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, {}, False),
        ({"role": "assistant", "content": "short", "reasoning_content": LONG}, {}, False),
    ],
)
async def test_whatever_makes_a_prompt_long_is_tokenized_off_the_event_loop(
    builders: Builders,
    monkeypatch: pytest.MonkeyPatch,
    turn: dict[str, Any],
    more: dict[str, Any],
    is_here: bool,
) -> None:
    threads: list[threading.Thread] = []
    tokenize = ChatTemplate.tokenize

    def noted(self: ChatTemplate, *args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return tokenize(self, *args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "tokenize", noted)
    await builders().prepare([{"role": "user"} | turn], **more)
    assert [thread is threading.current_thread() for thread in threads] == [is_here]


# The model's files


def test_model_files_say_what_the_model_is(folder: Path) -> None:
    files = ModelFiles.load(folder)
    assert (files.model_type, files.image_token_id, files.max_model_len) == ("qwen2_vl", IMAGE_PAD, 4096)
    assert files.preprocessor["min_pixels"] == 3136


def test_a_processors_nested_section_wins_over_its_own_file(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    (folder / "processor_config.json").write_text('{"image_processor": {"patch_size": 3}}')
    assert ModelFiles.load(folder).preprocessor == {"patch_size": 3}


def test_what_the_whole_processor_says_of_pictures_is_among_their_settings(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    (folder / "processor_config.json").write_text('{"image_seq_length": 64}')
    settings = ModelFiles.load(folder).preprocessor
    assert settings["image_seq_length"] == 64 and "size" in settings


def test_a_text_model_has_no_preprocessor(tmp_path: Path) -> None:
    files = ModelFiles.load(tiny_folder(tmp_path / "m", "qwen3"))
    assert files.preprocessor == {}


def test_a_template_in_the_processors_old_file_is_the_models(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m", template=None)
    (folder / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    tokenizer = ModelFiles.load(folder).tokenizer
    assert tokenizer.chat_template == "of the processor"
    (folder / "chat_template.jinja").write_text("of both")
    assert ModelFiles.load(folder).tokenizer.chat_template == "of both"


async def test_beside_a_processors_template_the_tokenizers_is_for_tools(
    tmp_path: Path, builders: Builders
) -> None:
    folder = tiny_folder(tmp_path / "m")
    (folder / "chat_template.jinja").rename(folder / "own.jinja")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.json").write_text('{"chat_template": "<|im_start|>processor"}')
    builder = builders(folder)
    plain = await builder.prepare([{"role": "user", "content": "hi"}])
    tooled = await builder.prepare([{"role": "user", "content": "hi"}], tools=[{"name": "look"}])
    texts = [ModelFiles.load(folder).tokenizer.decode(prompt.token_ids) for prompt in (plain, tooled)]
    assert texts[0] == "<|im_start|>processor" and '"look"' in texts[1]


@pytest.fixture
def coded_folder(tmp_path: Path) -> Path:
    """A model whose tokenizer is code of its own, as Kimi's and Phi-3-vision's are."""
    folder = tiny_folder(tmp_path / "coded", "unheard_of")
    (folder / "own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n\nclass Own(PreTrainedTokenizerFast):\n    pass\n"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_models_own_code_runs_only_where_it_is_trusted(coded_folder: Path) -> None:
    assert type(ModelFiles.load(coded_folder, trust_remote_code=True).tokenizer).__name__ == "Own"
    with pytest.raises(ValueError, match="trust_remote_code"):
        ModelFiles.load(coded_folder)


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"config\.json"):
        ModelFiles.load(tmp_path)


def test_settings_say_what_each_of_them_does() -> None:
    assert all(info.description for info in MediaConfig.model_fields.values())
    with pytest.raises(ValueError, match="extra"):
        MediaConfig(max_itmes=3)  # type: ignore[call-arg]


def test_items_are_frozen(folder: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelFiles.load(folder).config = {}  # type: ignore[misc]
