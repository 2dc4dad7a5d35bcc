"""The lines of a server's log: for programs, for people, and with nothing that opens a door."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from lakeferry.server import logs
from lakeferry.server.logs import AsJson, AsText, say

TOKEN = "lf_0123456789abcdef_" + "S" * 43
SIGNED = (
    "http://h/acc/d/data/f1620?method=PUT&expires=17&size=4&signature=5ec3e7",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA%2Fx&X-Amz-Signature=5ec3e7&x=1",
    "https://a.blob.core.windows.net/k?sv=1&sig=5ec3e7",
)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, Lines]]:
    logger, lines = logging.getLogger("lakeferry.test-log"), Lines()
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    yield logger, lines
    logger.removeHandler(lines)


def test_a_line_of_json_has_the_event_and_its_fields(log: tuple[logging.Logger, Lines]) -> None:
    logger, lines = log
    say(logger, logging.INFO, "session done", session="5", blocks=3, seconds=0.25, code=None)
    say(logger, logging.DEBUG, "nobody wants to know")
    [record] = lines.records
    line = AsJson().format(record)
    assert "\n" not in line
    document = json.loads(line)
    assert document.pop("time").endswith("Z")
    assert document == {
        "level": "info",
        "event": "session done",
        "logger": "lakeferry.test-log",
        "session": "5",
        "blocks": 3,
        "seconds": 0.25,
    }


def test_a_line_of_text_says_the_same(log: tuple[logging.Logger, Lines]) -> None:
    logger, lines = log
    say(logger, logging.INFO, "session done", session="5", blocks=3, seconds=0.25, error="not so")
    line = AsText().format(lines.records[0])
    assert line.endswith('Z INFO session done session=5 blocks=3 seconds=0.250 error="not so"')


@pytest.mark.parametrize("form", [AsJson(), AsText()])
def test_what_a_peer_says_begins_no_line_and_no_field(
    form: logging.Formatter, log: tuple[logging.Logger, Lines]
) -> None:
    logger, lines = log
    say(logger, logging.INFO, "it said\nERROR this", error='x\n2026 ERROR fake level="debug" a=b')
    line = form.format(lines.records[0])
    assert len(line.splitlines()) == 1
    assert " a=b" not in line.replace(r"\" a=b", "")


@pytest.mark.parametrize("form", [AsJson(), AsText()])
@pytest.mark.parametrize("secret", [TOKEN, f"Authorization: Bearer {'5ec3e7' * 3}", *SIGNED])
def test_tokens_and_signatures_are_left_out_wherever_they_stand(
    form: logging.Formatter, secret: str, log: tuple[logging.Logger, Lines]
) -> None:
    logger, lines = log
    say(logger, logging.INFO, "an event", error=f"it failed: {secret} didn't do")
    logger.warning("can't use %s", secret)
    try:
        raise ValueError(secret)
    except ValueError:
        logger.exception("a mistake")
    for record in lines.records:
        line = form.format(record)
        assert "5ec3e7" not in line
        assert "AKIA" not in line
        assert "S" * 43 not in line
        assert "ValueError" in line or record.exc_info is None


@pytest.mark.parametrize(("is_terminal", "form"), [(True, AsText), (False, AsJson)])
def test_people_get_text_and_programs_json(
    is_terminal: bool, form: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[logging.Handler] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(logging, "basicConfig", lambda handlers, **_: made.extend(handlers))
    logs.write_to_stderr()
    logs.write_to_stderr("json")
    assert [type(each.formatter) for each in made] == [form, AsJson]
