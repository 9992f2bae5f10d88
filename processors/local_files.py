"""file: URLs, of files below the configured roots and no others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from processors.data_url import too_large
from processors.errors import MediaUnreachable, RequestError

__all__ = ["read_file_url"]


def read_file_url(url: str, roots: Iterable[str], *, max_bytes: int) -> bytes:
    """The bytes of the file that a file: URL names.

    Links are followed first, and what they lead to must lie below a root.

    Raises:
        RequestError: 400 where there are no roots, or the file is below none of them.
        MediaUnreachable: 404 for no such file, 400 for one that cannot be read.
        MediaTooLarge: 413.
    """
    allowed = [Path(root).resolve() for root in roots]
    if not allowed:
        raise RequestError("file: URLs are off here (media.file_roots)", code="file_refused")
    path = _path_of(url)
    # The same answer for what is not there and what is not theirs: outside the roots nothing is told.
    outside = RequestError("the file: URL leads outside of media.file_roots", code="file_refused")
    try:
        real = path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        if any(path.is_relative_to(root) for root in allowed) and ".." not in path.parts:
            raise MediaUnreachable("the file: URL names no file", status=404) from None
        raise outside from None
    if not any(real.is_relative_to(root) for root in allowed):
        raise outside
    return _read(real, max_bytes)


def _path_of(url: str) -> Path:
    try:
        parts = urlsplit(url)
        path = Path(unquote(parts.path, errors="surrogateescape"))
        is_well_formed = parts.scheme == "file" and parts.netloc in ("", "localhost") and path.is_absolute()
    except ValueError:
        is_well_formed = False
    if not is_well_formed or "\0" in str(path):
        message = "a file: URL needs the form file:///absolute/path"
        raise RequestError(message, code="malformed_url")
    return path


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        # Neither a link that took the file's place meanwhile, nor a pipe that nobody writes to.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise MediaUnreachable("the file: URL names no regular file")
            if found.st_size > max_bytes:
                raise too_large(found.st_size, max_bytes)
            data = file.read(max_bytes + 1)
    except OSError as error:
        message = f"the file of the file: URL cannot be read ({type(error).__name__})"
        raise MediaUnreachable(message) from None
    if len(data) > max_bytes:
        raise too_large(len(data), max_bytes)
    return data
