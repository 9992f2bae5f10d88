"""Measurements for a profile from the rows that `sightline bench --rows FILE` writes.

prefill  text requests that were alone: their time to the first token, by tokens computed and cached
decode   the mean time between tokens, by requests under way: meant for short prompts and long answers,
         where the others' prefills hardly count
encode   requests with pictures that were alone: what their time to the first token has beyond the prefill
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulation.fitting import Fit, FitError, Measurement, fit
from simulation.profile import Profile

__all__ = ["BenchRow", "fit_rows", "read_rows"]


class BenchRow(BaseModel):
    """One request of a bench run, as far as a fit reads it (docs/load_generator.md)."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    ttft_ms: float | None = Field(None, ge=0)
    itl_ms: float | None = Field(None, ge=0)
    prompt_tokens: int | None = Field(None, ge=0)
    cached_tokens: int | None = Field(None, ge=0)
    output_tokens: int | None = Field(None, ge=0)
    concurrent: int = Field(1, ge=1)
    pictures: int = Field(0, ge=0)
    error: str = ""

    @property
    def is_usable(self) -> bool:
        return not self.error and self.prompt_tokens is not None

    @property
    def is_alone(self) -> bool:
        return self.is_usable and self.concurrent == 1 and bool(self.ttft_ms)

    @property
    def prefill(self) -> Measurement:
        """Its time to the first token as that of a prefill."""
        cached = self.cached_tokens or 0
        return Measurement("prefill", self.ttft_ms or 0.0, (self.prompt_tokens or 0) - cached, cached)

    @property
    def decode(self) -> Measurement:
        """Its time between tokens; it had half of its answer on average."""
        context = (self.prompt_tokens or 0) + (self.output_tokens or 0) // 2
        return Measurement("decode", self.itl_ms or 0.0, context=context, batch=self.concurrent)


def read_rows(path: Path) -> list[BenchRow]:
    """
    Raises:
        FitError: the file cannot be read, or a line of it is no row.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FitError(f"{path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(BenchRow.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            what = ": ".join([*map(str, first["loc"]), first["msg"]])
            raise FitError(f"{path}, line {number}: no row of `sightline bench --rows`: {what}") from error
    return rows


def fit_rows(
    text: Iterable[BenchRow],
    pictures: Mapping[int, Sequence[BenchRow]] | None = None,
    *,
    name: str = "fitted",
    source: str = "",
) -> Fit:
    """The profile of the endpoint that was measured.

    text: rows without pictures. pictures: rows whose requests have pictures, by the encoder tokens of each
    of these pictures; never the same picture twice (`--repeat new`), or nothing is encoded.

    Raises:
        FitError: too few rows of a sort; the endpoint tells no usage.
    """
    usable = [row for row in text if row.is_usable and not row.pictures]
    rows = [row.prefill for row in usable if row.is_alone]
    rows += [row.decode for row in usable if row.itl_ms and (row.output_tokens or 0) > 1]
    if not rows:
        raise FitError("no text row with prompt tokens and times: does the endpoint answer with `usage`?")
    found = fit(rows, name=name, source=source)
    encodes = [
        encode
        for tokens, group in (pictures or {}).items()
        for row in group
        if row.is_alone and row.pictures and (encode := _encode(row, tokens, found.profile))
    ]
    return fit([*rows, *encodes], name=name, source=source) if encodes else found


def _encode(row: BenchRow, tokens: int, profile: Profile) -> Measurement | None:
    """None where the prefill explains all of the time (the picture was cached, or costs nothing)."""
    prefill = row.prefill
    beyond = prefill.ms - profile.step_ms(prefill.work)
    return Measurement("encode", beyond / row.pictures, tokens=tokens) if beyond > 0 else None
