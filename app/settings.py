"""Where settings come from: the file's `args:`, then SIGHTLINE_ variables, which win.

Every top-level setting with a single value has a variable of its upper-case name (`SIGHTLINE_MODEL`).
Besides: `SIGHTLINE_ENGINE_ARGS` (added to `engine_args`, winning key by key) and
`SIGHTLINE_ALLOW_PRIVATE_MEDIA` (`media.allow_private_addresses`). An empty variable is as good as none.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.engine_args import parse_engine_args
from app.settings_model import Settings

__all__ = ["SettingOrigin", "Settings", "SettingsError", "explain", "load_settings", "variables"]

_PREFIX = "SIGHTLINE_"
_NESTED = {"SIGHTLINE_ALLOW_PRIVATE_MEDIA": "media.allow_private_addresses"}
# Read by scripts and the command line; not settings of the application.
_NOT_SETTINGS = ("SIGHTLINE_CACHE", "SIGHTLINE_PYTHON", "SIGHTLINE_TORCH_INDEX")
_SECRETS = ("tenant_secret", "media.identity_secret")


class SettingsError(ValueError):
    """A setting that cannot be used; says which, its value, and what is allowed."""


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One setting's value and where it comes from.

    name: dotted for nested settings ("router.policy").
    origin: "default", "file", the variable's name, or "gpu" / "cpu": chosen for that accelerator.
    """

    name: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class _Given:
    """A setting that a variable gives."""

    variable: str
    text: str
    value: Any


def load_settings(args: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Settings:
    """The settings of `args` (a Serve config's `args:`) under the variables of `environ`.

    Raises:
        SettingsError: an unknown name (with the nearest known one), or a value that is not allowed.
    """
    given = _without_empty_sections(args or {})
    _refuse_unknown(given, Settings, "")
    from_environ = _read(environ)
    try:
        return Settings.model_validate(_merge(given, from_environ))
    except ValidationError as error:
        lines = [_explain_error(detail, from_environ) for detail in error.errors()]
        raise SettingsError("\n".join(lines)) from None


def explain(
    args: Mapping[str, Any] | None,
    environ: Mapping[str, str],
    accelerator: Literal["gpu", "cpu"] | None = None,
) -> list[SettingOrigin]:
    """Every setting with its value and origin, in the order of the model; secrets are masked.

    accelerator: also fill in what depends on it, as the application does when it starts.

    Raises:
        SettingsError: as `load_settings`.
    """
    settings = load_settings(args, environ)
    effective = dict(_leaves(settings.effective(accelerator) if accelerator else settings))
    from_environ = _read(environ)
    from_file = {*_names(_without_empty_sections(args or {}))}

    def origin(name: str, value: Any) -> str:
        if effective[name] != value:
            return str(accelerator)
        if name in from_environ:
            return from_environ[name].variable
        return "file" if name in from_file else "default"

    return [
        SettingOrigin(name, _shown(name, effective[name]), origin(name, value))
        for name, value in _leaves(settings)
    ]


def variables() -> dict[str, str]:
    """Variable to the (dotted) name of the setting that it gives."""
    scalar = {
        _PREFIX + name.upper(): name for name in Settings.model_fields if _section(Settings, name) is None
    }
    return scalar | _NESTED


def _shown(name: str, value: Any) -> Any:
    return "***" if name in _SECRETS and value is not None else value


def _read(environ: Mapping[str, str]) -> dict[str, _Given]:
    """By the setting's name."""
    known = variables()
    given: dict[str, _Given] = {}
    for variable, text in environ.items():
        if variable in known and text.strip():
            given[known[variable]] = _Given(variable, text, _value(known[variable], variable, text.strip()))
        elif variable.startswith(_PREFIX):
            _refuse_misspelled(variable, [*known, *_NOT_SETTINGS])
    return given


def _value(name: str, variable: str, text: str) -> Any:
    """What the model is given; everything but engine arguments it reads from text itself."""
    if name not in ("engine_args", "engine_runtime_env"):
        return text
    try:
        return parse_engine_args(text)
    except ValueError as error:
        raise SettingsError(
            f"{variable}={text!r}: {error}. Write flags (--max-num-seqs 8 --enforce-eager) or a JSON object"
        ) from None


def _refuse_misspelled(variable: str, known: list[str]) -> None:
    """Variables that resemble none of ours are somebody else's."""
    near = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
    if near and variable not in known:
        raise SettingsError(f"unknown variable {variable}: did you mean {near[0]}?")


def _section(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The nested model of a field, if it is one."""
    annotation = model.model_fields[name].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _refuse_unknown(given: Mapping[str, Any], model: type[BaseModel], prefix: str) -> None:
    for name, value in given.items():
        if name not in model.model_fields:
            raise SettingsError(
                f"unknown setting {prefix + str(name)!r}{_suggestion(str(name), model, prefix)}"
            )
        section = _section(model, name)
        if section is not None and isinstance(value, Mapping):
            _refuse_unknown(value, section, f"{prefix}{name}.")


def _suggestion(name: str, model: type[BaseModel], prefix: str) -> str:
    """Of the same section if one is near there, else of another."""
    for path in _nearest(name, [prefix + field for field in model.model_fields]):
        return f": did you mean {path!r}?"
    for path in _nearest(name, list(_paths(Settings))):
        return f": did you mean {path!r}?"
    return f"; known here: {', '.join(model.model_fields)}"


def _nearest(name: str, paths: Iterable[str]) -> list[str]:
    by_leaf = {path.rpartition(".")[2]: path for path in paths}
    return [by_leaf[leaf] for leaf in difflib.get_close_matches(name.lower(), list(by_leaf), n=1)]


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name in model.model_fields:
        section = _section(model, name)
        if section is None:
            yield prefix + name
        else:
            yield from _paths(section, f"{prefix}{name}.")


def _leaves(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _names(given: Mapping[str, Any]) -> Iterator[str]:
    """Dotted names of what a file gives."""
    for name, value in given.items():
        if isinstance(value, Mapping) and _section(Settings, name) is not None:
            yield from (f"{name}.{inner}" for inner in value)
        else:
            yield name


def _without_empty_sections(args: Mapping[str, Any]) -> dict[str, Any]:
    """`media:` with nothing below it, or all of it commented out, is no setting."""
    sections = ("media", "video", "router", "simulation", "engine_args", "engine_runtime_env")
    return {name: value for name, value in args.items() if not (name in sections and value in (None, {}))}


def _merge(given: dict[str, Any], from_environ: dict[str, _Given]) -> dict[str, Any]:
    merged = dict(given)
    for name, entry in from_environ.items():
        section, _, inner = name.partition(".")
        if inner:
            merged[section] = {**merged.get(section, {}), inner: entry.value}
        elif name == "engine_args":
            merged[name] = {**merged.get(name, {}), **entry.value}
        else:
            merged[name] = entry.value
    return merged


def _explain_error(detail: ErrorDetails, from_environ: dict[str, _Given]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    if not name:
        return message
    entry = from_environ.get(name)
    if entry is not None:
        return f"{entry.variable}={entry.text!r}: {message}"
    return f"{name}: {detail['input']!r}: {message}"
