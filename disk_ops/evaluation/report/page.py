"""The page: tables, plots and pictures in one HTML file that needs no other one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import cv2
import numpy as np

from disk_ops.drawing import resize_picture
from disk_ops.evaluation.protocol import Picture, Plot, Table
from disk_ops.evaluation.report.cells import cells, is_number_column
from disk_ops.evaluation.report.plots import NEEDS_MATPLOTLIB, plot_svg, plotting_is_possible

_WIDEST = 1400  # pixels of a picture
_QUALITY = 85  # of JPEG

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c1e21; background: #fff;
  max-width: 1240px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2.2em; } h3 { font-size: 1em; margin: 1.6em 0 .4em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .8em; text-align: left; border-bottom: 1px solid #e3e5e8; white-space: nowrap; }
th { border-bottom: 2px solid #8a8d91; font-weight: 600; } .number { text-align: right; }
td.text { max-width: 40em; white-space: normal; overflow-wrap: break-word; }
.note { color: #60646a; font-size: .9em; max-width: 60em; overflow-wrap: anywhere; }
figure { margin: 1em 0 2em; } img { max-width: 100%; height: auto; } figcaption { color: #60646a; font-size: .9em; }
"""


def page(
    title: str,
    tables: Sequence[Table],
    plots: Sequence[Plot],
    pictures: Iterable[tuple[str, Picture]],
    environment: Mapping[str, Any],
) -> Iterator[str]:
    """The parts of the page, in order. Pictures are asked for one after the other.

    Raises:
        ValueError: a table, plot or picture isn't as it should be.
    """
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n"
    )
    for table in tables:
        yield _table(table)
    if plots:
        yield "<h2>Plots</h2>\n"
        yield from _plots(plots)
    heading = "<h2>Pictures</h2>\n"
    for caption, picture in pictures:
        yield heading + _figure("jpeg", _jpeg(caption, picture), caption, caption)
        heading = ""
    if environment:
        yield _environment(environment)
    yield "</body>\n</html>\n"


def _table(table: Table) -> str:
    numeric = [is_number_column(table, index) for index in range(len(table.columns))]
    kinds = ["number" if is_number else "text" for is_number in numeric]
    head = "".join(
        f'<th scope="col" class="{kind}">{_text(name)}</th>' for kind, name in zip(kinds, table.columns, strict=True)
    )
    body = []
    for row in cells(table):
        shown = (f"<strong>{_text(cell.text)}</strong>" if cell.best else _text(cell.text) for cell in row)
        body.append("".join(f'<td class="{kind}">{text}</td>' for kind, text in zip(kinds, shown, strict=True)))
    rows = "\n".join(f"<tr>{row}</tr>" for row in body) or f'<tr><td colspan="{len(kinds)}">(nothing)</td></tr>'
    return (
        f'<h2>{_text(table.title)}</h2>\n<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>\n{_note(table.note)}"
    )


def _plots(plots: Sequence[Plot]) -> Iterator[str]:
    if not plotting_is_possible():
        yield _note(NEEDS_MATPLOTLIB)
        return
    for plot in plots:
        # As an image of its own, its identifiers can't meet those of the next one.
        series = ", ".join(plot.series) or "nothing"
        yield _figure("svg+xml", plot_svg(plot), f"{plot.title}: {plot.y_label} by {plot.x_label} of {series}")


def _environment(environment: Mapping[str, Any]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{_text(key)}</th><td class="text">{_text(_value(value))}</td></tr>'
        for key, value in environment.items()
    )
    return f'<h2>How this was computed</h2>\n<div class="wide"><table>\n{rows}\n</table></div>\n'


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _figure(kind: str, data: bytes, alternative: str, caption: str = "") -> str:
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    below = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return f'<figure><img alt="{_text(alternative)}" src="{source}">{below}</figure>\n'


def _jpeg(
    caption: str,
    picture: Picture,  # [H, W, 3] RGB
) -> bytes:
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        got = f"{picture.dtype} {list(picture.shape)}"
        raise ValueError(f"picture {caption!r} must be uint8 [H, W, 3] and not empty, got {got}")
    smaller = resize_picture(picture, min(1.0, _WIDEST / picture.shape[1]))
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(smaller[:, :, ::-1]), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return bytes(data.tobytes())


def _note(note: str) -> str:
    return f'<p class="note">{_text(note)}</p>\n' if note else ""


def _text(text: str) -> str:
    """A text of any kind in HTML; bytes of file names that are not UTF-8 are shown as escapes."""
    return escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))
