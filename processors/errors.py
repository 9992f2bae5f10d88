"""What a user did wrong, in the shape of OpenAI's errors.

    RequestError              400 unless it says otherwise
    ├── MediaUnreachable      the origin's own 4xx, 408 on a time limit, else 400
    ├── MediaTooLarge         413
    └── UnsupportedMedia      415, or 400 where a known format is broken

All of them survive pickling, because Ray moves them between processes.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MediaTooLarge", "MediaUnreachable", "RequestError", "UnsupportedMedia"]


class RequestError(Exception):
    """A request that cannot be served as it is: says the value, the limit and what to do.

    status: of the HTTP answer. param: path of the offending value, e.g. `messages[0].content[1]`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        type: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.type = type

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.status, self.param, self.code, self.type)


class MediaUnreachable(RequestError):
    """The media's own server did not give it."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message, status=status, param=param, code="media_unreachable")


class MediaTooLarge(RequestError):
    """An item has more bytes than `media.max_item_bytes`."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, status=413, param=param, code="media_too_large")


class UnsupportedMedia(RequestError):
    """Not a picture that can be decoded here."""

    def __init__(self, message: str, *, status: int = 415, param: str | None = None) -> None:
        super().__init__(message, status=status, param=param, code="unsupported_media")


def _rebuild(
    cls: type[RequestError], message: str, status: int, param: str | None, code: str | None, kind: str
) -> RequestError:
    # Subclasses have signatures of their own, so the base fills the fields.
    error = cls.__new__(cls)
    RequestError.__init__(error, message, status=status, param=param, code=code, type=kind)
    return error
