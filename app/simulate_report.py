"""The report of a simulation: pictures, and one page of HTML that has them all inside."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from app.simulate_output import RatedRun, table
from app.simulate_plots import figures
from simulation.workloads import Workload

__all__ = ["write_report"]

_DOTS_PER_INCH = 110
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Sightline: {title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; }}
pre {{ background: #f4f4f4; overflow-x: auto; padding: 1em; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
<pre>{table}</pre>
<p>Times in milliseconds, from the client's sending; hit and regret in percent of the prompt tokens.</p>
{pictures}
</body>
</html>
"""


def write_report(folder: Path, workload: Workload, runs: Sequence[RatedRun]) -> Path:
    """Draw each picture as a PNG, and all of them into report.html; returns that one's path."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, (title, figure) in figures(runs).items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH)
        (folder / f"{name}.png").write_bytes(buffer.getvalue())
        pictures.append((title, buffer.getvalue()))
    page = folder / "report.html"
    page.write_text(_page(workload, runs, pictures), encoding="utf-8")
    return page


def _page(workload: Workload, runs: Sequence[RatedRun], pictures: Iterable[tuple[str, bytes]]) -> str:
    return _PAGE.format(
        title=html.escape(f"{workload.alias} {workload.name}"),
        about=html.escape(workload.about),
        table=html.escape("\n".join(table(runs))),
        pictures="\n".join(_picture(title, png) for title, png in pictures),
    )


def _picture(title: str, png: bytes) -> str:
    source = "data:image/png;base64," + base64.b64encode(png).decode()
    return f'<h2>{html.escape(title)}</h2>\n<img alt="{html.escape(title)}" src="{source}">'
