"""Our application in a Serve config file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.settings import SettingsError

__all__ = ["ServeFile", "read_serve_file"]

_IMPORT_PATH = "app.build:build"


@dataclass(frozen=True, slots=True)
class ServeFile:
    """What a Serve config file says of our application, unchecked."""

    args: dict[str, Any] = field(default_factory=dict)
    app_name: str = "sightline"
    route_prefix: str = "/"
    port: int = 8000


def read_serve_file(path: Path) -> ServeFile:
    """Read the application whose import path is ours; Serve checks the rest of the file.

    Raises:
        SettingsError: no such file, not YAML, or our application is not in it.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SettingsError(f"cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise SettingsError("is not a Serve config file: it has no `applications:`")
    application = _application(document)
    return ServeFile(
        args=_mapping(application, "args"),
        app_name=application.get("name", "sightline"),
        route_prefix=application.get("route_prefix", "/"),
        port=_mapping(document, "http_options").get("port", 8000),
    )


def _application(document: dict[str, Any]) -> dict[str, Any]:
    for application in document.get("applications") or []:
        if isinstance(application, dict) and application.get("import_path") == _IMPORT_PATH:
            return application
    raise SettingsError(f"has no application with `import_path: {_IMPORT_PATH}`")


def _mapping(section: dict[str, Any], name: str) -> dict[str, Any]:
    value = section.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{name}: must be a mapping of names to values, got {value!r}")
    return value
