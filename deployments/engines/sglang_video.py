"""Requests with clips, made ready for SGLang in the replica.

SGLang's own loader takes files only; it samples and resizes them by rules of its own, decodes the token ids
that come with them and tokenizes the text again. So a request with a clip is put through the model's
installed Hugging Face processor here, item by item, and SGLang is given the outcome (`processor_output`):
expanded token ids, pixels and grids, which it takes as they are. Checked with SGLang 0.5.23.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from processors import DecodedVideo, FamilyLayout, Refusal, Shape
from sightline_types import ImageSize, Modality, VideoShape

__all__ = [
    "ClipProcessor",
    "ItemsMiscounted",
    "ReadyRequest",
    "check_count",
    "clip_requests",
    "foreseen_ids",
    "images_first",
]

MAX_PROMPT_TOKENS = 1 << 20
#: Odd and even counts, sides under a token's, times that round, a frame alone.
CLIPS = (
    VideoShape(ImageSize(64, 48), 4, 30.0, (0, 20, 39, 59), 60),
    VideoShape(ImageSize(100, 72), 5, 25.0, (0, 9, 19, 28, 38), 39),
    VideoShape(ImageSize(640, 360), 7, 29.97, (0, 50, 100, 150, 200, 250, 299), 300),
    VideoShape(ImageSize(16, 48), 2, 50.0, (3828, 3877), 3878),
    VideoShape(ImageSize(2000, 10), 3, 12.0, (0, 1, 2), 3),
    VideoShape(ImageSize(320, 240), 1, 30.0, (0,), 1),
)

#: Of a processor's output: one row an item, or the patches of all items one after the other.
_FIELDS = {
    Modality.IMAGE: ("pixel_values", "image_grid_thw"),
    Modality.VIDEO: ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts"),
}


class ItemsMiscounted(Exception):
    """SGLang counts other items than the request has: it would drop all identities."""


def check_count(output: Any, shapes: Sequence[Shape]) -> None:
    """
    Raises:
        ItemsMiscounted: SGLang's processor made other than one item of each.
    """
    if len(output.mm_items) != len(shapes):
        raise ItemsMiscounted(f"SGLang finds {len(output.mm_items)} items in a request with {len(shapes)}")


@dataclass(frozen=True, slots=True)
class ReadyRequest:
    """token_ids: expanded. data: SGLang's one `processor_output` of all items, pictures first.

    are_apart: whether SGLang counts the items as the request does, and so takes an identity for each.
    """

    token_ids: list[int]
    data: dict[str, Any]
    are_apart: bool = True


class ClipProcessor:
    """The model's installed processor, of which this keeps a copy: SGLang uses its own in other threads.

    mm_processor: SGLang's, of the Qwen-VL families.
    layout: of the model; whether or not it knows a clip's exact size is of no matter.
    """

    def __init__(self, mm_processor: Any, layout: FamilyLayout) -> None:
        self._layout = layout
        self._processor = copy.deepcopy(mm_processor._processor)
        self._image_kwargs = dict(mm_processor.image_config or {})
        self._modalities = {token: modality for modality, token in layout.placeholders.items()}
        self._texts = {
            Modality.IMAGE: self._processor.image_token,
            Modality.VIDEO: self._processor.video_token,
        }
        self._lock = threading.Lock()  # a fast tokenizer is not for two threads at once

    async def ready(
        self, token_ids: Sequence[int], media: Sequence[Image.Image | DecodedVideo]
    ) -> ReadyRequest:
        """
        Raises:
            ValueError: the processor refuses an item, or the prompt has other placeholders than media.
        """
        return await asyncio.to_thread(self._ready, token_ids, media)

    async def engine_ids(
        self, mm_processor: Any, token_ids: Sequence[int], shapes: Sequence[Shape]
    ) -> list[int] | None:
        """The prompt that SGLang makes of blank items of these shapes; None where an item is refused.

        Raises:
            ItemsMiscounted: of items that `ReadyRequest.are_apart` says are not.
        """
        from sglang.srt.managers.io_struct import GenerateReqInput

        try:
            ready = await self.ready(token_ids, [_blank(shape) for shape in shapes])
        except ValueError:
            return None
        request = GenerateReqInput(input_ids=ready.token_ids, video_data=[ready.data])
        output = await mm_processor.process_mm_data_async(
            image_data=None,
            audio_data=None,
            input_text=ready.token_ids,
            request_obj=request,
            max_req_input_len=MAX_PROMPT_TOKENS,
        )
        check_count(output, shapes)
        return [int(token) for token in output.input_ids]

    def _ready(self, token_ids: Sequence[int], media: Sequence[Image.Image | DecodedVideo]) -> ReadyRequest:
        with self._lock:
            outputs = [(_modality(item), self._output(item)) for item in media]
        are_apart = not self._layout.holds_only_cold([_shape(item) for item in media])
        return ReadyRequest(self._expanded(token_ids, outputs), _bundle(outputs), are_apart)

    def _output(self, item: Image.Image | DecodedVideo) -> Any:
        text = [self._texts[_modality(item)]]
        if isinstance(item, Image.Image):
            picture = item.convert("RGB")
            return self._processor(
                text=text, images=[picture], images_kwargs=self._image_kwargs, return_tensors="pt"
            )
        return self._processor(
            text=text,
            videos=[item.frames],
            video_metadata=[_metadata(item.shape)],
            do_sample_frames=False,
            input_data_format="channels_last",
            return_tensors="pt",
        )

    def _expanded(self, token_ids: Sequence[int], outputs: Sequence[tuple[Modality, Any]]) -> list[int]:
        waiting = iter(outputs)
        expanded: list[int] = []
        for token in token_ids:
            modality = self._modalities.get(token)
            if modality is None:
                expanded.append(token)
                continue
            described, output = next(waiting, (None, None))
            if output is None or described is not modality:
                raise ValueError(f"a placeholder of a {modality.value} in the prompt has no such item")
            expanded += output["input_ids"].flatten().tolist()
        if next(waiting, None) is not None:
            raise ValueError(f"{len(outputs)} media items for fewer placeholders in the prompt")
        return expanded


def images_first(modalities: Sequence[Modality]) -> list[int]:
    """Indices of a request's items in the order in which SGLang counts them."""
    return sorted(range(len(modalities)), key=lambda index: modalities[index] is not Modality.IMAGE)


def _modality(item: Image.Image | DecodedVideo) -> Modality:
    return Modality.IMAGE if isinstance(item, Image.Image) else Modality.VIDEO


def _shape(item: Image.Image | DecodedVideo) -> Shape:
    return ImageSize(*item.size) if isinstance(item, Image.Image) else item.shape


def _bundle(outputs: Sequence[tuple[Modality, Any]]) -> dict[str, Any]:
    import torch

    data: dict[str, Any] = {"format": "processor_output"}
    for modality, names in _FIELDS.items():
        ours = [output for other, output in outputs if other is modality]
        for name in names:
            if ours and name in ours[0]:
                data[name] = torch.cat([torch.as_tensor(output[name]) for output in ours])
    return data


def _metadata(shape: VideoShape) -> dict[str, Any]:
    rate = shape.source_fps or None
    total = shape.total_frames or shape.num_frames
    return {
        "total_num_frames": total,
        "fps": rate,
        "duration": total / rate if rate else None,
        "video_backend": "pyav",
        "frames_indices": list(shape.frame_indices) or list(range(shape.num_frames)),
    }


def clip_requests(layout: FamilyLayout) -> Iterator[tuple[Shape, ...]]:
    """What a worker's processor is asked at start: clips alone, beside a picture, and two together where that
    is foreseen."""
    yield from ((clip,) for clip in CLIPS)
    yield CLIPS[0], ImageSize(200, 200)
    for several in ((CLIPS[0], CLIPS[1]), (CLIPS[0], ImageSize(200, 200), CLIPS[3])):
        if not layout.holds_only_cold(several):
            yield several


def _blank(shape: Shape) -> Image.Image | DecodedVideo:
    size = shape.size if isinstance(shape, VideoShape) else shape
    if isinstance(shape, VideoShape):
        return DecodedVideo(np.zeros((shape.num_frames, size.height, size.width, 3), dtype=np.uint8), shape)
    return Image.new("RGB", (size.width, size.height))


def foreseen_ids(layout: FamilyLayout, token_ids: Sequence[int], shapes: Sequence[Shape]) -> list[int] | None:
    """The registry's prompt; None where it says that the processor refuses an item."""
    plans = layout.replacements(shapes)
    if any(isinstance(plan, Refusal) for plan in plans):
        return None
    ids: list[int] = layout.expand(token_ids, plans).token_ids.tolist()
    return ids
