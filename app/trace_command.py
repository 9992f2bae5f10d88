"""`sightline trace`: from a log of OpenAI chat requests to a trace without anything that anybody wrote."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from simulation.anonymizer import Anonymizer
from simulation.errors import TraceError

__all__ = ["run", "size_in_data_url"]


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 where a line cannot be read or there is none; then nothing is written."""
    width, _, height = args.size.partition("x")
    if not (_is_side(width) and _is_side(height)):
        return _fail(f"--size {args.size!r}: WIDTHxHEIGHT, such as 1280x720")
    if args.out.exists() and args.log.exists() and args.out.samefile(args.log):
        return _fail(f"--out {args.out}: that is the log itself")
    anonymizer = Anonymizer(
        secrets.token_bytes(32), size_of=size_in_data_url, other_size=(int(width), int(height))
    )
    try:
        lines = [
            request.model_dump_json(exclude_none=True) for request in anonymizer.convert(_lines(args.log))
        ]
        if not lines:
            raise TraceError("no requests in it")
    except (OSError, UnicodeDecodeError, TraceError) as error:
        return _fail(f"{args.log}: {error}")
    try:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        return _fail(f"--out {args.out}: {error.strerror}")
    print(f"{args.out}: {len(lines)} requests")
    return 0


def _fail(message: str) -> int:
    print(f"sightline: {message}", file=sys.stderr)
    return 1


def _is_side(text: str) -> bool:
    return text.isdecimal() and text.isascii() and 0 < len(text) <= 6 and text[0] != "0"


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as file:
        yield from file


def size_in_data_url(url: str) -> tuple[int, int] | None:
    """(width, height) from the header of a picture that is in its own address; None for any other."""
    if url[:5].lower() != "data:":
        return None
    from processors.data_url import parse_data_url
    from processors.errors import RequestError
    from processors.probe import ProbeError, probe_image

    try:
        size = probe_image(parse_data_url(url, max_bytes=len(url)))
    except (RequestError, ProbeError):
        return None
    return size.width, size.height
