"""Check what a wheel and an sdist contain: their files, and the metadata that an index shows."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from email.parser import BytesParser
from email.policy import default
from pathlib import Path

FIELDS = (
    "Author",
    "Classifier",
    "Description-Content-Type",
    "Keywords",
    "License-Expression",
    "License-File",
    "Provides-Extra",
    "Requires-Dist",
    "Requires-Python",
    "Summary",
)


def problems(wheel: Path, sdist: Path, root: Path) -> list[str]:
    """Return what is wrong with a wheel and an sdist of the project in a folder."""
    source = root / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = packed.read(metadata)
    described = BytesParser(policy=default).parsebytes(text)
    with tarfile.open(sdist) as unpacked:
        inside = {name.partition("/")[2] for name in unpacked.getnames()}
    found = [f"the wheel lacks {name}" for name in sorted(wanted - names)]
    found += [
        f"the wheel has {name}"
        for name in sorted(names - wanted)
        if ".dist-info/" not in name and not name.endswith("/")
    ]
    needed = {f"src/{name}" for name in wanted} | {"pyproject.toml", "README.md", "LICENSE"}
    found += [f"the sdist lacks {name}" for name in sorted(needed - inside)]
    found += [f"the metadata lacks {field}" for field in FIELDS if not described[field]]
    if text.partition(b"\n\n")[2].strip() != (root / "README.md").read_bytes().strip():
        found.append("the metadata's description isn't README.md")
    if described["Description-Content-Type"] != "text/markdown":
        found.append("the metadata doesn't say that its description is Markdown")
    if described["Version"] not in wheel.name or described["Version"] not in sdist.name:
        found.append("the files are named after another version")
    return found


def main(arguments: list[str]) -> int:
    """Check the one wheel and the one sdist of a folder."""
    (folder,) = map(Path, arguments)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    found = problems(wheel, sdist, Path(__file__).resolve().parents[1])
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
