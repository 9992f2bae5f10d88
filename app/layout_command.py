"""`sightline layout`: what the registry of families makes of pictures and clips, without weights or GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from app.layout_items import Item, ItemError, read_items
from processors import (
    FamilyLayout,
    LayoutOptions,
    LayoutRefused,
    ModelFolder,
    PlacedItem,
    Refusal,
    Replacement,
    find_layout,
)
from sightline_types import DegradeReason

__all__ = ["ItemLayout", "lay_out", "run"]

_REFUSED, _WRONG_CALL = 2, 1


@dataclass(frozen=True, slots=True)
class ItemLayout:
    """One request: its items one after the other, with no text between.

    token_ids: shape (n,), int64; None on a refusal. spans: of the items, in order.
    """

    items: tuple[Item, ...]
    token_ids: npt.NDArray[np.int64] | None = None
    spans: tuple[PlacedItem, ...] = ()
    refusal: Refusal | None = None
    refused_item: Item | None = None

    @property
    def runs(self) -> list[list[int]]:
        ids = [] if self.token_ids is None else self.token_ids.tolist()
        return [[token, len(list(run))] for token, run in groupby(ids)]

    def as_json(self) -> dict[str, Any]:
        texts = [item.text for item in self.items]
        identities = [item.media_id and item.media_id.hex for item in self.items]
        spans = [
            {"offset": span.offset, "length": span.length, "identity": identities[span.index]}
            for span in self.spans
        ]
        refusal = None
        if self.refusal is not None and self.refused_item is not None:
            refusal = {
                "reason": str(self.refusal.reason),
                "detail": self.refusal.detail,
                "item": self.refused_item.text,
            }
        return {
            "item": texts[0] if len(texts) == 1 else texts,
            "tokens": None if self.token_ids is None else len(self.token_ids),
            "layout": self.runs,
            "spans": spans,
            "refusal": refusal,
        }


def run(args: argparse.Namespace) -> int:
    """Returns 0, 1 for a wrong call, 2 for a refusal; with `--each` a refusal is an answer like any other."""
    try:
        files = ModelFolder.load(args.model, trust_remote_code=args.trust_remote_code)
        items = read_items(args.item, allow_private_addresses=args.allow_private_addresses)
        options = _options(args)
    except (ItemError, OSError, ValueError) as error:
        print(f"sightline: {error}", file=sys.stderr)
        return _WRONG_CALL
    layout = _layout(files, options)
    requests = [(item,) for item in items] if args.each else [tuple(items)]
    answers = [_explained(lay_out(layout, request), files) for request in requests]
    for answer in answers:
        print(json.dumps(answer.as_json()) if args.json else "\n".join(_lines(answer)))
    return _REFUSED if not args.each and any(answer.refusal for answer in answers) else 0


def _options(args: argparse.Namespace) -> LayoutOptions:
    try:
        kwargs = json.loads(args.processor_kwargs)
    except (ValueError, RecursionError):
        kwargs = None
    if not isinstance(kwargs, dict):
        raise ValueError(f"--processor-kwargs takes a JSON object, got {args.processor_kwargs}")
    if args.max_model_len is not None and args.max_model_len < 1:
        raise ValueError(f"--max-model-len takes a number of tokens from 1, got {args.max_model_len}")
    if not 0 <= args.video_pruning_rate < 1:
        raise ValueError(
            f"--video-pruning-rate takes a number from 0 to below 1, got {args.video_pruning_rate}"
        )
    return LayoutOptions(args.engine, args.max_model_len, args.video_pruning_rate, kwargs)


def _layout(files: ModelFolder, options: LayoutOptions) -> FamilyLayout | Refusal:
    try:
        layout = find_layout(files, options)
    except LayoutRefused as error:
        return Refusal(error.reason, error.detail)
    if layout is not None:
        return layout
    named = files.config.get("model_type") or files.config.get("architectures")
    detail = f"no exact layout is known for {named} on {options.engine} with these settings"
    return Refusal(DegradeReason.UNSUPPORTED_FAMILY, detail)


def lay_out(layout: FamilyLayout | Refusal, items: tuple[Item, ...]) -> ItemLayout:
    """All items as one request; the first refusal is the request's."""
    if isinstance(layout, Refusal):
        return ItemLayout(items, refusal=layout, refused_item=items[0])
    shapes = [None if isinstance(item.shape, Refusal) else item.shape for item in items]
    ids: list[npt.NDArray[np.int64]] = []
    for item, plan in zip(items, layout.replacements(shapes), strict=True):
        refusal = item.shape if isinstance(item.shape, Refusal) else plan
        if isinstance(refusal, Refusal):
            return ItemLayout(items, refusal=refusal, refused_item=item)
        assert isinstance(plan, Replacement)
        ids.append(plan.ids)
    edges = np.cumsum([0, *map(len, ids)]).tolist()
    spans = (PlacedItem(i, start, end - start) for i, (start, end) in enumerate(pairwise(edges)))
    return ItemLayout(items, np.concatenate(ids), tuple(spans))


def _explained(answer: ItemLayout, files: ModelFolder) -> ItemLayout:
    """A missing tokenizer is often why a modality is not laid out: times of frames are text."""
    refusal = answer.refusal
    if refusal is None or refusal.reason is not DegradeReason.UNSUPPORTED_MODALITY:
        return answer
    if files.tokenizer is not None:
        return answer
    detail = f"{refusal.detail}; the folder has no tokenizer, which layouts with text need"
    return replace(answer, refusal=replace(refusal, detail=detail))


def _lines(answer: ItemLayout) -> Iterator[str]:
    yield " ".join(item.text for item in answer.items)
    if answer.refusal is not None and answer.refused_item is not None:
        detail = f": {answer.refusal.detail}" if answer.refusal.detail else ""
        yield f"  refused {answer.refused_item.text}: {answer.refusal.reason}{detail}"
        return
    yield f"  tokens  {sum(span.length for span in answer.spans)}"
    yield f"  layout  {_run_text(answer.runs)}"
    for span in answer.spans:
        identity = answer.items[span.index].media_id
        known = "" if identity is None else f"  identity {identity}"
        yield f"  span    {span.offset}+{span.length}  {answer.items[span.index].text}{known}"


def _run_text(runs: Sequence[Sequence[int]]) -> str:
    return " ".join(str(token) if count == 1 else f"{count}x{token}" for token, count in runs)
