"""Writes results and errors: one JSON document, lines of JSON, or text.

With ``--json``, standard output has exactly one JSON document (``files``: one line per file). If
the command failed, the last line of standard error is ``{"error": {"code", "message", "remedy",
…}}``. Without ``--json``, a terminal gets tables and a pipe gets plain lines.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakeferry.cli import terminal_drawing
from lakeferry.cli.screen import one_line, wrapped

if TYPE_CHECKING:
    from lakeferry.cli.render import Page


def encode_document(document: object) -> bytes:
    """Return a JSON document as one line of UTF-8, without its end."""
    try:
        import msgspec

        return msgspec.json.encode(document, enc_hook=str)
    except (ImportError, UnicodeEncodeError):
        # Without msgspec there are still errors to print. Bytes of a file's name that aren't
        # UTF-8 are lone surrogates in Python.
        return json.dumps(document, default=str).encode()


class Output:
    """The two streams of a command. ``json`` is whether a program reads them."""

    def __init__(self, *, json: bool) -> None:
        """Write JSON, or text for people."""
        self.json = json
        self.after_interrupt = "run the command again"
        """What to tell a user who interrupts the command to do next."""
        self._failed = threading.Lock()

    def document(self, document: Mapping[str, Any]) -> None:
        """Print the one document of a command."""
        self.write(encode_document(document) + b"\n")

    def documents(self, documents: Iterable[object]) -> None:
        """Print one line for each document."""
        import msgspec

        self.write(msgspec.json.Encoder(enc_hook=str).encode_lines(list(documents)))

    def write(self, data: bytes) -> None:
        """Write bytes to standard output."""
        with terminal_drawing.aside():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def text(self, text: str) -> None:
        """Write text to standard output."""
        self.write(text.encode(errors="backslashreplace"))

    def page(self) -> Page:
        """Return the page to which tables for people are written."""
        from lakeferry.cli.render import new_page

        return new_page(sys.stdout)

    def warn(self, text: str) -> None:
        """Write a warning about a problem that could be worked around to standard error."""
        _to_stderr(_for_people(f"warning: {one_line(text)}"))

    def note(self, text: str) -> None:
        """Write a note about the result to standard error, unless a program reads the output."""
        if not self.json:
            _to_stderr(_for_people(f"note: {one_line(text)}"))

    def fail(self, error: Mapping[str, Any]) -> None:
        """Write the reason of the failure to standard error: once, and at the end."""
        if not self._failed.acquire(blocking=False):
            return
        terminal_drawing.over()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        if self.json:
            _to_stderr(encode_document({"error": error}) + b"\n")
            return
        said = _for_people(f"error: {one_line(str(error['message']))}")
        if error.get("remedy"):
            said += _for_people(f"remedy: {one_line(str(error['remedy']))}")
        _to_stderr(said)

    def abandon(self) -> None:
        """Stop using standard output, which nobody reads any more."""
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _for_people(line: str) -> bytes:
    """Return a line for standard error, broken between words where that is a terminal."""
    if _is_terminal():
        line = "\n".join(wrapped(line, shutil.get_terminal_size().columns))
    return f"{line}\n".encode(errors="backslashreplace")


def _is_terminal() -> bool:
    with suppress(OSError, ValueError):
        return sys.stderr.isatty()
    return False


def _to_stderr(data: bytes) -> None:
    with terminal_drawing.aside(), suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), data)
