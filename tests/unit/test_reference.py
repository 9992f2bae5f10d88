"""The configuration page says what the settings say."""

from __future__ import annotations

from pathlib import Path

from app.reference import reference
from app.settings_model import Settings


def test_the_page_in_docs_is_the_one_that_the_settings_make() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
    assert page.read_text() == reference(), "sightline config --reference > docs/configuration.md"


def test_every_setting_is_explained() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"`{name}`" in reference() or f"`{name}:`" in reference()
