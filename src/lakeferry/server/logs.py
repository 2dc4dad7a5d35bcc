"""Writes the server's log: JSON for programs, text for people.

As JSON, a line is one object: ``time`` (UTC), ``level``, ``event``, and other fields, of a
session for instance ``session op dataset client blocks objects seconds code``. As text, the
fields are ``key=value`` after the event. A peer's text can't begin a new line or look like
another field.

A log must not give access: anything that looks like a token, or like the signature of a URL, is
removed from every line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Any, Literal

import msgspec

Format = Literal["json", "text"]
FORMATS: tuple[Format, ...] = ("json", "text")

_FIELDS = "lakeferry_fields"
_LEFT_OUT = "…"
_SECRETS = re.compile(
    r"(?P<lead>lf_[0-9a-f]{16}_|bearer\s+|\b(?:signature|sig|x-amz-[a-z-]+|x-goog-[a-z-]+)=)"
    r"[^\s&\"'<>\\]+",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")


def say(log: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log an event; fields that are ``None`` are omitted."""
    if log.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        log.log(level, "%s", event, extra={_FIELDS: known})


def write_to_stderr(form: Format | None = None, *, debug: bool = False) -> None:
    """Write everything that is logged to standard error.

    Without a ``form``: text on a terminal, JSON otherwise.
    """
    chosen = form or ("text" if sys.stderr.isatty() else "json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AsJson() if chosen == "json" else AsText())
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if debug else logging.INFO)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, _FIELDS, {})
    return fields


def _without_secrets(text: str) -> str:
    return _SECRETS.sub(rf"\g<lead>{_LEFT_OUT}", text)


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03}Z"


class AsJson(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_fields(record),
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        clean = {
            name: _without_secrets(value) if isinstance(value, str) else value
            for name, value in document.items()
        }
        return msgspec.json.encode(clean, enc_hook=str).decode()


class AsText(logging.Formatter):
    """A line for each record, with the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        words = [f"{name}={_word(value)}" for name, value in _fields(record).items()]
        event = record.getMessage().replace("\r", " ").replace("\n", " ")
        line = " ".join([_time(record), record.levelname, event, *words])
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return _without_secrets(line)


def _word(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()
