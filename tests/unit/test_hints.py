"""What a client may ask of the router by request headers."""

from __future__ import annotations

import pytest

from deployments.hints import PRIORITY, SESSION, WORKER, read_hints
from processors import RequestError
from router.config import HintsConfig
from sightline_types import RouteHints

ALL = HintsConfig(session="soft", priority=True, pin=True)
GIVEN = {SESSION: "s1", PRIORITY: "5", WORKER: "replica/0"}


def test_headers_that_are_not_switched_on_are_not_read():
    assert read_hints(GIVEN | {PRIORITY: "nonsense"}, HintsConfig()) == RouteHints()


def test_each_header_is_read_where_it_is_switched_on():
    hints = read_hints(GIVEN, ALL)
    assert (hints.priority, hints.worker, hints.is_session_hard) == (5, "replica/0", False)
    assert hints.session == read_hints({SESSION: " s1 "}, HintsConfig(session="hard")).session
    assert read_hints({}, ALL) == RouteHints()


def test_tenants_do_not_share_sessions_of_one_name():
    assert read_hints(GIVEN, ALL, tenant="a").session != read_hints(GIVEN, ALL, tenant="b").session


@pytest.mark.parametrize(
    ("header", "value", "says"),
    [
        (PRIORITY, "101", "'101' is not an integer from -100 to 100"),
        (PRIORITY, "high", "'high' is not an integer"),
        (SESSION, "", "has 0 characters; it must have 1 to 256"),
        (SESSION, "x" * 257, "has 257 characters"),
        (WORKER, "  ", "has 0 characters"),
    ],
)
def test_a_bad_value_is_refused_with_header_value_and_limit(header, value, says):
    with pytest.raises(RequestError, match=says) as caught:
        read_hints({header: value}, ALL)
    assert (caught.value.status, caught.value.param) == (400, header)
    assert header in str(caught.value)
