"""Renders pages: the Jinja environment, its filters, and the static files.

Every string is escaped, and a name that a template isn't given is an error.
"""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2

from lakeferry.readable import counted
from lakeferry.version import LAKEFERRY_VERSION
from lakeferry.web import page_filters, svg_plots

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages load; ``version`` changes with its content."""

    data: bytes
    media_type: str
    version: str


@lru_cache(maxsize=1)
def static_files() -> dict[str, StaticFile]:
    """Return the static files by name."""
    found = {}
    for path in sorted((_HERE / "static").iterdir()):
        data = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        found[path.name] = StaticFile(data, kind, hashlib.sha256(data).hexdigest()[:12])
    return found


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "size": page_filters.shown_size,
        "number": page_filters.shown_number,
        "counted": counted,
        "moment": page_filters.shown_moment,
        "age": page_filters.shown_age,
        "duration": page_filters.shown_duration,
        "place": page_filters.shown_place,
        "breakable": page_filters.breakable,
    }
    environment.globals["plots"] = svg_plots
    environment.globals["version"] = LAKEFERRY_VERSION
    environment.globals["assets"] = {
        name: f"/static/{name}?{urlencode({'v': file.version})}"
        for name, file in static_files().items()
    }
    return environment


def render_page(template: str, context: dict[str, Any]) -> str:
    """Return the HTML of a template."""
    return _environment().get_template(template).render(context)


def page_link(base: str, path: str, /, **query: object) -> str:
    """Return a link to a page of the console; ``None`` and empty values are left out."""
    asked = [(name, str(value)) for name, value in query.items() if value not in (None, "")]
    return f"{base}{path}{'?' if asked else ''}{urlencode(asked)}"
