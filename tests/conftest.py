"""For every suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.settings import variables


@pytest.fixture(scope="session", autouse=True)
def no_settings_from_the_shell() -> Iterator[None]:
    """What whoever runs the tests has set for their own serving must not change what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in variables():
            patch.delenv(variable, raising=False)
        yield
