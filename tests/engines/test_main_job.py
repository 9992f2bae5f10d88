"""The main job on two real vLLM replicas behind Serve, over HTTP: what the router foretells of the
prefix cache is what the engine finds, block for block."""

from __future__ import annotations

import pytest

from tests.engines import pictures as make
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, image_part, messages

#: A prompt of these tests: full blocks before its first picture, under the picture, and behind it.
MIN_BLOCKS_BEFORE, MIN_PICTURE_BLOCKS, MIN_BLOCKS_AFTER = 3, 3, 2
#: With fewer tokens than these the chat template begins every prompt: a page of one token holds them.
TEMPLATE_HEAD = 10


def assert_speaks_for_itself(service: Service, answer, first_media_block: int | None = None) -> None:
    """The prompt is long enough that nothing passes as 0 = 0."""
    assert answer.media_blocks >= MIN_PICTURE_BLOCKS
    before = blocks_before_picture(service, answer)
    assert before >= MIN_BLOCKS_BEFORE
    assert answer.total_blocks - before - answer.media_blocks >= MIN_BLOCKS_AFTER


def blocks_before_picture(service: Service, answer) -> int:
    """Full blocks before the block in which the first picture begins."""
    return service.decision(answer.decision_id)["first_media_offset"] // service.block


def test_a_repeated_picture_reaches_the_replica_that_holds_it(
    service: Service, pictures: PictureServer
) -> None:
    url = pictures.put("repeat.png", make.png(100))
    turns = messages(image_part(url), QUESTION, system="Unlike any other. " * 30)
    first = service.ask_exact(turns)
    assert_speaks_for_itself(service, first)
    assert first.overlap * service.block < TEMPLATE_HEAD
    again = service.ask_exact(turns)
    assert again.worker == first.worker
    assert again.overlap >= 6
    assert again.media_overlap == again.media_blocks == first.media_blocks


def test_a_new_question_about_an_old_picture_earns_everything_before_it(
    service: Service, pictures: PictureServer
) -> None:
    url = pictures.put("asked.png", make.png(101))
    first = service.ask_exact(messages(image_part(url), QUESTION))
    second = service.ask_exact(messages(image_part(url), "Now for something else. " + QUESTION))
    assert second.worker == first.worker
    assert second.media_overlap >= MIN_PICTURE_BLOCKS - 1
    assert 6 <= second.overlap < second.total_blocks - 1


def test_content_identity_knows_a_picture_by_another_address(
    service: Service, pictures: PictureServer
) -> None:
    data = make.png(102)
    first = service.ask_exact(messages(image_part(pictures.put("one.png", data)), QUESTION))
    second = service.ask_exact(messages(image_part(pictures.put("two.png", data)), QUESTION))
    assert second.worker == first.worker
    assert second.media_overlap == second.media_blocks


def test_content_identity_knows_a_picture_given_as_data(service: Service, pictures: PictureServer) -> None:
    picture = make.pixels(103)
    first = service.ask_exact(messages(image_part(pictures.put("web.png", make.encode(picture))), QUESTION))
    as_data = make.data_url(make.encode(picture, "BMP"), "image/bmp")
    second = service.ask_exact(messages(image_part(as_data), QUESTION))
    assert second.worker == first.worker
    assert second.media_overlap == second.media_blocks


def test_another_picture_of_the_same_size_stops_where_it_begins(
    service: Service, pictures: PictureServer
) -> None:
    service.ask_exact(messages(image_part(pictures.put("this.png", make.png(104))), QUESTION))
    other = service.ask_exact(messages(image_part(pictures.put("that.png", make.png(105))), QUESTION))
    assert_speaks_for_itself(service, other)
    assert other.media_overlap == 0
    assert other.overlap == blocks_before_picture(service, other)


def test_two_pictures_in_swapped_order_earn_no_false_credit(
    service: Service, pictures: PictureServer
) -> None:
    one, two = (image_part(pictures.put(f"swap{n}.png", make.png(106 + n))) for n in (0, 1))
    service.ask_exact(messages(one, two, QUESTION))
    swapped = service.ask_exact(messages(two, one, QUESTION))
    assert swapped.media_overlap == 0
    assert swapped.overlap == blocks_before_picture(service, swapped)
    again = service.ask_exact(messages(two, one, QUESTION))
    assert again.media_overlap == again.media_blocks


@pytest.mark.parametrize("remainder", [0, 1])
def test_the_last_block_is_counted_as_the_engine_counts_it(
    service: Service, pictures: PictureServer, remainder: int
) -> None:
    """n mod B = 0: the engine computes the whole last block again; n mod B = 1: it does not.

    With blocks of one token both are the one case.
    """
    remainder %= service.block
    url = pictures.put("edge.png", make.png(108))
    for words in range(2 * service.block):
        turns = messages(image_part(url), QUESTION + " a" * words)
        answer = service.ask(turns)
        if answer.prompt_tokens % service.block == remainder:
            break
    assert answer.prompt_tokens % service.block == remainder
    again = service.ask_exact(turns)
    assert again.cached == again.prompt_tokens - (service.block if remainder == 0 else 1)


@pytest.mark.parametrize("kind", ["rotated jpeg", "rgba png", "gif", "grey png", "palette png"])
def test_odd_pictures_are_foreseen_like_plain_ones(
    service: Service, pictures: PictureServer, kind: str
) -> None:
    size = (320, 448)
    data = {
        "rotated jpeg": lambda: make.rotated_jpeg(110, size),
        "rgba png": lambda: make.encode(make.pixels(111, size, "RGBA")),
        "gif": lambda: make.gif(112, size),
        "grey png": lambda: make.encode(make.pixels(113, size, "L")),
        "palette png": lambda: make.encode(make.pixels(114, size).quantize(32)),
    }[kind]()
    turns = messages(image_part(pictures.put(kind.replace(" ", ""), data)), QUESTION)
    first = service.ask_exact(turns)
    again = service.ask_exact(turns)
    assert again.worker == first.worker
    assert again.media_overlap == again.media_blocks >= MIN_PICTURE_BLOCKS


def test_the_second_turn_is_credited_with_the_generated_blocks(
    service: Service, pictures: PictureServer
) -> None:
    url = pictures.put("turns.png", make.png(115))
    turns = messages(image_part(url), QUESTION)
    # A bias to one word makes an answer that reads back as the very tokens that were generated.
    word = single_token(service, " the")
    options = {"max_tokens": 3 * service.block, "logit_bias": {str(word): 100}, "return_token_ids": True}
    first = service.ask_exact(turns, **options)
    assert first.token_ids == [word] * (3 * service.block)
    turns = [*turns, {"role": "assistant", "content": first.text}, {"role": "user", "content": QUESTION}]
    second = service.ask_exact(turns, return_token_ids=True)
    generated = second.body["prompt_token_ids"][first.prompt_tokens : first.prompt_tokens + 3 * service.block]
    assert generated == first.token_ids
    assert second.worker == first.worker
    # All of the first prompt, and of the generated tokens all that were computed (the last one never was).
    assert second.cached == (first.prompt_tokens + 3 * service.block - 1) // service.block * service.block


def single_token(service: Service, word: str) -> int:
    from transformers import AutoTokenizer

    root = service.client.get("/v1/models").json()["data"][0]["root"]
    (token,) = AutoTokenizer.from_pretrained(root).encode(word, add_special_tokens=False)
    return int(token)


def test_a_cache_salt_separates_equal_prompts(service: Service, pictures: PictureServer) -> None:
    url = pictures.put("salted.png", make.png(116))
    turns = messages(image_part(url), QUESTION)
    service.ask_exact(turns, cache_salt="one")
    other = service.ask_exact(turns, cache_salt="two")
    assert other.overlap == 0
    same = service.ask_exact(turns, cache_salt="one")
    assert same.overlap >= 6


def test_after_a_flush_nothing_is_foretold(service: Service, pictures: PictureServer) -> None:
    from ray import serve

    from tests.engines.test_eviction import router_keys

    turns = messages(image_part(pictures.put("flushed.png", make.png(119))), QUESTION)
    service.ask_exact(turns)
    assert service.ask_exact(turns).overlap >= 6
    handle = serve.get_deployment_handle("Engine", service.app_name)
    workers = [row["worker"] for row in service.wait_idle()]
    # Serve sends each call to a replica of its own choice.
    service.wait_for(
        lambda: (
            handle.reset_prefix_cache.remote().result(timeout_s=30)
            and not any(router_keys(worker, service) for worker in workers)
        )
    )
    after = service.ask_exact(turns)
    assert after.overlap == after.cached == 0


def test_per_request_processor_options_are_served_without_media_credit(
    service: Service, pictures: PictureServer
) -> None:
    url = pictures.put("options.png", make.png(117))
    turns = messages(image_part(url), QUESTION)
    service.ask_exact(turns)
    service.wait_idle()
    answer = service.ask(turns, mm_processor_kwargs={"min_pixels": 4096})
    decision = service.decision(answer.decision_id)
    assert "mm_processor_kwargs" in decision["degraded"]
    assert answer.media_overlap == 0


def test_the_engine_opens_no_socket_for_media(service: Service, pictures: PictureServer) -> None:
    """Every request at the picture server came from an ingress replica: not from an engine's processes."""
    url = pictures.put("watched.png", make.png(118))
    pictures.seen.clear()
    pictures.watches = True
    try:
        service.ask(messages(image_part(url), QUESTION))
    finally:
        pictures.watches = False
    owners = {owner for _, owner in pictures.seen}
    assert owners, "nobody asked for the picture"
    assert all("Ingress" in owner for owner in owners), owners
