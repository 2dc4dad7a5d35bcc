"""The pages of the site, and where their links lead.

Most pages are files below ``docs``. Others, such as the README, are elsewhere in the repository;
:data:`ELSEWHERE` says what their names on the site are. All links are written for the
repository, so that they work on a code host. :func:`for_site` rewrites those of one page: a
link to another page leads to that page, and a link to any other file leads to a copy of the file
on the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
FILES = "files"
"""The folder of the site that has copies of files that aren't pages."""
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "bench/README.md": "benchmarks.md",
    "tests/support/README.md": "testing.md",
}
"""Pages outside of ``docs``: their path in the repository, and their name on the site."""

_FENCE = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_OTHER_PLACE = re.compile(r"[a-z][a-z+.-]*:|/|#")
# What a test makes happen before a block of commands (tests/support/page_commands.py).
_EVENT = re.compile(r"^<!-- run: .*? -->\n", re.MULTILINE)
_CODE_IN_TABLE = re.compile(r"`[^`\n]*`")


def split_fences(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a page: whether a part is a fenced block, and its text."""
    end = 0
    for fence in _FENCE.finditer(text):
        if fence.start() > end:
            yield False, text[end : fence.start()]
        yield True, fence[0]
        end = fence.end()
    if end < len(text):
        yield False, text[end:]


def repository_path(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    by_name = {name: path for path, name in ELSEWHERE.items()}
    return by_name.get(page, f"{DOCS}/{page}")


def site_path(path: str) -> str:
    """Return the name on the site of a file in the repository."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    inside = path.removeprefix(f"{DOCS}/")
    return f"{FILES}/{path}" if inside == path else inside


def linked_files(page: str, text: str) -> Iterator[str]:
    """Yield the files in the repository to which a page of the site links and that aren't pages."""
    for fenced, part in split_fences(text):
        for link in () if fenced else _LINK.finditer(part):
            target = _target(page, link[2])
            if target is not None and site_path(target).startswith(f"{FILES}/"):
                yield target


def for_site(page: str, text: str) -> str:
    """Return the text of a page with links as they have to be on the site."""

    def rewritten(link: re.Match[str]) -> str:
        target = _target(page, link[2])
        if target is None:
            return link[0]
        anchor = "".join(link[2].partition("#")[1:])
        to = posixpath.relpath(site_path(target), posixpath.dirname(page) or ".")
        return f"{link[1]}{to}{anchor}{link[3]}"

    def plain(line: str) -> str:
        # On a code host a pipe in a table's code is escaped; here the backslash would be shown.
        if not line.startswith("|"):
            return line
        return _CODE_IN_TABLE.sub(lambda code: code[0].replace("\\|", "|"), line)

    parts = []
    for fenced, part in split_fences(text):
        if fenced:
            parts.append(part)
        else:
            lines = _LINK.sub(rewritten, _EVENT.sub("", part)).split("\n")
            parts.append("\n".join(plain(line) for line in lines))
    return "".join(parts)


def _target(page: str, link: str) -> str | None:
    """Return the file in the repository to which a link leads, or None if it is another link."""
    if _OTHER_PLACE.match(link):
        return None
    folder = posixpath.dirname(repository_path(page))
    return posixpath.normpath(posixpath.join(folder, link.partition("#")[0]))
