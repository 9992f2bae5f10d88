"""docs/configuration.md, written from the settings' own descriptions: `sightline config --reference`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.settings import Settings, variables

__all__ = ["reference"]

_HEAD = """# Configuration

Written by `sightline config --reference` from the settings themselves; do not edit by hand.

Settings stand under `args:` of the application in a Serve config file. A variable wins over the file; it is
read where the application is built, so set it before the cluster's Ray starts. `sightline config` prints the
effective values and where each comes from. An unknown name is refused, with the nearest known one.
"""


def reference() -> str:
    """The whole page, Markdown."""
    by_name = {name: variable for variable, name in variables().items()}
    sections = [_HEAD]
    for title, prefix, model in _sections():
        sections.append(f"## {title}\n\n| setting | default | what it does |\n|---|---|---|")
        for name, field in model.model_fields.items():
            if _section(field) is None:
                sections.append(_row(prefix + name, field, by_name.get(prefix + name)))
        sections.append("")
    return "\n".join(sections)


def _sections() -> Iterator[tuple[str, str, type[BaseModel]]]:
    yield "Application", "", Settings
    yield from _nested(Settings, "")


def _nested(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        section = _section(field)
        if section is not None:
            yield f"`{prefix}{name}:`", f"{prefix}{name}.", section
            yield from _nested(section, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """The nested model of a field, if it is one."""
    kind: Any = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _row(name: str, field: FieldInfo, variable: str | None) -> str:
    given = f"<br>`{variable}`" if variable else ""
    description = (field.description or "").replace("|", "\\|")
    return f"| `{name}`{given} | `{_default(field)}` | {description} |"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    return str(value).lower() if isinstance(value, bool) else str(value)
