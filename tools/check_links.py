"""Check that the relative links of Markdown files lead to files and headings."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def anchor(heading: str) -> str:
    """The name that a heading gets when it is shown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The names that a page's headings get when it is shown."""
    plain = (re.sub(r"[`*_]|\[|\]\([^)]*\)", "", h) for h in HEADING.findall(FENCE.sub("", text)))
    return {anchor(heading) for heading in plain}


def broken_links(page: Path) -> list[str]:
    """The links of one page that lead nowhere."""
    text = page.read_text()
    broken = []
    for groups in LINK.findall(FENCE.sub("", text)):
        link = groups[0] or groups[1]
        if re.match(r"[a-z+]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target) if target else page
        if not file.exists():
            broken.append(f"{page}: {link}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            broken.append(f"{page}: {link}: no such heading")
    return broken


def main(arguments: list[str]) -> int:
    """Check the pages and folders given; those that don't exist are passed over."""
    places = [Path(argument) for argument in arguments]
    pages = [place for place in places if place.is_file()]
    pages += [page for place in places for page in sorted(place.glob("**/*.md"))]
    broken = [problem for page in pages for problem in broken_links(page)]
    for problem in broken:
        sys.stderr.write(problem + "\n")
    sys.stdout.write(f"{len(pages)} pages, {len(broken)} broken links\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
