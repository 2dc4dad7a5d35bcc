"""Says which Python package is missing or too old, and how to install it.

On a cluster that brings packages of its own, Lakeferry may be installed with ``pip install
--no-deps``. A command then works if the packages that it uses are there, and otherwise names the
one that isn't. What Lakeferry requires is read from its own metadata.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest

from lakeferry.errors import PackageMissing

_DISTRIBUTIONS = {
    "delta": "delta-spark",
    "prometheus_client": "prometheus-client",
    "yaml": "pyyaml",
}
"""Packages whose modules have another name."""
_LINE = re.compile(r"([\w.-]+)([^;\[]*)(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?.*")
_CLAUSE = re.compile(r"(>=|<|!=|==)\s*([\d.]+)")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that Lakeferry requires; ``extra`` is the extra that brings it, if one does."""

    package: str
    versions: str
    extra: str | None = None

    @property
    def wanted(self) -> str:
        """What ``pip install`` takes."""
        if self.extra is not None:
            return f"lakeferry[{self.extra}]"
        return f"{self.package}{self.versions}"

    def accepts(self, version: str) -> bool:
        """Return True if a version is in the range."""
        found = _numbers(version)
        return all(
            _fits(_compared(found, _numbers(bound)), operator)
            for operator, bound in _CLAUSE.findall(self.versions)
        )


def requirements() -> list[Requirement]:
    """Return what Lakeferry requires, with its extras; nothing if it isn't installed as a package.

    That is so on Spark's executors, which get its modules from the driver.
    """
    # Imported late: it takes longer than all of this module, and is needed after a failure.
    from importlib import metadata

    try:
        lines = metadata.requires("lakeferry") or []
    except metadata.PackageNotFoundError:
        return []
    found = [match for line in lines if (match := _LINE.fullmatch(line)) and "[" not in line]
    return [Requirement(match[1].lower(), match[2].strip(), match[3]) for match in found]


def unmet_requirements() -> list[tuple[Requirement, str | None]]:
    """Return the requirements that aren't met, each with the installed version if there is one.

    Those of extras are left out.
    """
    installed = [(each, _installed(each.package)) for each in requirements() if each.extra is None]
    return [
        (each, version)
        for each, version in installed
        if version is None or not each.accepts(version)
    ]


def package_at_fault(error: Exception) -> PackageMissing | None:
    """Return the error to report if something that failed lacks a package; None if not.

    It does if a package can't be imported that isn't ours, or if one is older than required.
    """
    if isinstance(error, ImportError) and (missing := _not_imported(error)) is not None:
        return missing
    old = [each for each, version in unmet_requirements() if version is not None]
    if not old:
        return None
    wanted = "' '".join(each.wanted for each in old)
    return PackageMissing(
        f"Lakeferry requires a newer {old[0].package}",
        cause=f"{type(error).__name__}: {error}",
        remedy=f"pip install '{wanted}'",
        package=old[0].package,
    )


@contextmanager
def naming_missing_packages() -> Iterator[None]:
    """Add a note to errors of imports: how to install the package that is missing."""
    try:
        yield
    except ImportError as missing:
        if (fault := package_at_fault(missing)) is not None:
            missing.add_note(f"remedy: {fault.remedy}")
        raise


def _not_imported(error: ImportError) -> PackageMissing | None:
    module = (error.name or "").partition(".")[0]
    if module in ("", "lakeferry"):
        return None
    if module in sys.stdlib_module_names:
        return PackageMissing(
            f"this Python lacks the module {module} of its standard library",
            cause=str(error),
            remedy="use a Python that was built with it",
            package=module,
        )
    package = _DISTRIBUTIONS.get(module, module)
    wanted = next((each.wanted for each in requirements() if each.package == package), package)
    version = _installed(package)
    state = "isn't installed" if version is None else f"{version} lacks what this needs"
    return PackageMissing(
        f"the Python package {package} {state}",
        cause=str(error),
        remedy=f"pip install '{wanted}'",
        package=package,
    )


def _installed(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    found = _NUMBERS.match(version)
    return [int(part) for part in found[0].split(".")] if found else []


def _compared(version: Sequence[int], bound: Sequence[int]) -> int:
    """Return -1, 0 or 1 as a version is below, at or above a bound; 4.2 is 4.2.0."""
    pairs = zip_longest(version, bound, fillvalue=0)
    return next((-1 if a < b else 1 for a, b in pairs if a != b), 0)


def _fits(compared: int, operator: str) -> bool:
    return {
        ">=": compared >= 0,
        "<": compared < 0,
        "!=": compared != 0,
        "==": compared == 0,
    }[operator]
