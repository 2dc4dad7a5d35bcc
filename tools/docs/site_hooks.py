"""What mkdocs calls while it builds the site (``hooks`` in ``mkdocs.yml``).

It adds the pages that are elsewhere in the repository, fills in the references that are made
from the source, turns links into those of the site, and draws the diagrams. Nothing is
requested from the network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.check_links import anchor
from tools.docs import (
    command_reference,
    error_reference,
    metric_reference,
    python_reference,
    setting_reference,
    state_diagram,
)
from tools.docs.repository_pages import (
    DOCS,
    ELSEWHERE,
    ROOT,
    for_site,
    linked_files,
    repository_path,
    site_path,
)

REFERENCES = {
    "commands": command_reference.command_page,
    "python": python_reference.python_page,
    "errors": error_reference.error_page,
    "settings": setting_reference.setting_page,
    "metrics": metric_reference.metric_page,
}
"""What replaces the line ``<!-- from the source: NAME -->`` of a page."""

_MARK = re.compile(r"^<!-- from the source: (\w+) -->$", re.MULTILINE)
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DRAWING = re.compile(r"^!\[([^\]]*)\]\(([^)]+\.svg)\)$", re.MULTILINE)
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_TAG = re.compile(r"<(?:script|link|img|iframe|object|source|image|use)\b[^>]*>")
_ADDRESS = re.compile(r"""\b(?:src|href|data)=["']?((?:https?:)?//[^"'\s>]+)""")
_STYLE_ADDRESS = re.compile(r"""(?:url\(|@import )\s*["']?((?:https?:)?//[^"')\s]+)""")
_DECISIONS = "Decisions"
_HOME = "index.md"

log = get_plugin_logger("site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the names that code hosts give them, and list the decisions."""
    config.mdx_configs["toc"] = {
        **config.mdx_configs.get("toc", {}),
        "slugify": lambda text, _: anchor(text),
    }
    pages = sorted(path.name for path in (ROOT / DOCS / "decisions").glob("*.md"))
    _fill(config.nav, [f"decisions/{page}" for page in pages])
    return config


def _fill(entries: Any, pages: list[str]) -> None:
    """Put the decisions under their name, wherever that is in the navigation."""
    for entry in entries:
        for name, below in entry.items() if isinstance(entry, dict) else ():
            if name == _DECISIONS:
                entry[name] = pages
            elif isinstance(below, list):
                _fill(below, pages)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from outside of ``docs``, and copies of the files to which pages link."""
    for path, name in ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    wanted = {
        target
        for file in files.documentation_pages()
        for target in linked_files(file.src_uri, file.content_string)
    }
    for target in sorted(wanted):
        if (ROOT / target).is_file():
            path = str(ROOT / target)
            files.append(File.generated(config, site_path(target), abs_src_path=path))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the text of a page as it is on the site."""
    name = page.file.src_uri
    if name == _HOME:
        page.meta["hide"] = ["navigation"]
    text = _MARK.sub(lambda mark: REFERENCES[mark[1]](), markdown)
    text = _with_state_diagrams(text)
    text = for_site(name, text)
    folder = (ROOT / repository_path(name)).parent
    return _DRAWING.sub(lambda drawing: _inline(folder / drawing[2], drawing[0]), text)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site whose pages load something from elsewhere."""
    site = Path(config.site_dir)
    for page in sorted([*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]):
        for loaded in loads(page.read_text()):
            log.warning("%s loads %s", page.relative_to(site), loaded)


def loads(text: str) -> list[str]:
    """Return what a page or a style sheet loads from other hosts when it is shown."""
    tags = _TAG.findall(text)
    found = [each for tag in tags for each in _ADDRESS.findall(tag)]
    return [*found, *_STYLE_ADDRESS.findall(text)]


def _with_state_diagrams(text: str) -> str:
    number = 0

    def drawn(block: re.Match[str]) -> str:
        nonlocal number
        number += 1
        before = [line for line in text[: block.start()].splitlines() if line.strip()]
        paragraph = before[-1].lstrip("# ").partition(".")[0].rstrip(":")
        headings = [line.lstrip("# ") for line in before if line.startswith("#")]
        said = paragraph if len(paragraph) < 60 else headings[-1]
        title = f"{said.replace('`', '')}: states and transitions"
        drawing = state_diagram.draw(block[1], title if number == 1 else f"{title} ({number})")
        return f'<figure class="drawing" tabindex="0">{drawing}</figure>'

    return _MERMAID.sub(drawn, text)


def _inline(file: Path, otherwise: str) -> str:
    """Return a drawing of ours as part of the page, where it has the colours of the page."""
    if not file.is_file():
        return otherwise
    drawing = " ".join(_STYLE.sub("", file.read_text()).split())
    return f'<figure class="drawing" tabindex="0">{drawing}</figure>'
