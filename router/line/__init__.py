"""A direct line: calls of bytes between processes over one TCP connection each, without Ray's task path.

A call of a Ray actor takes about a millisecond of CPU on both sides together, whatever it carries. What
every request needs goes over this line instead; Ray remains the way for everything else.

    client   magic, token                      first, within HELLO_TIMEOUT_S: else the connection is closed
    server   magic                             the token is right
    client   length, call id, method, body     as many calls under way as it likes
    server   length, call id, status, body     in any order; the body of a failed call says why

Length is that of the body. Integers are little-endian: uint32, method and status uint8. Nothing that a
stranger sends is read beyond the size of a greeting, nor is it decoded. Whoever holds the token is trusted as
Ray's own processes are; the line is not encrypted.
"""

from router.line.client import Line
from router.line.frames import BodyTooLarge, CallFailed, LineAddress, LineDown, LineError
from router.line.server import LineServer

__all__ = ["BodyTooLarge", "CallFailed", "Line", "LineAddress", "LineDown", "LineError", "LineServer"]
