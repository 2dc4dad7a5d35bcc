"""How the commands of a page are found, and how loosely outputs are compared."""

from __future__ import annotations

import click
import pytest

from tests.support.page_commands import ShownCommand, blocks, calls, missing, parse

PAGE = """
# A page

<!-- run: table orders -->
<!-- run: server ./server -->
```console
$ lakeferry inspect orders \\
    --version 3
version: 3
$ lakeferry history orders | cut -f1
# useradd lakeferry
```

```python
x = 1
```

```sh
lakeferry doctor    # what is missing
```
"""


def test_the_blocks_of_a_page_have_commands_outputs_and_events() -> None:
    first, second = blocks(PAGE)
    assert first.events == ("table orders", "server ./server")
    assert first.commands == (
        ShownCommand("lakeferry inspect orders \\\n    --version 3", ("version: 3",)),
        ShownCommand("lakeferry history orders | cut -f1"),
        ShownCommand("useradd lakeferry"),
    )
    assert second.first == "lakeferry doctor    # what is missing"
    assert second.events == ()


def test_an_event_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="no block"):
        blocks("<!-- run: table t -->\n\ntext\n")


def test_a_session_that_begins_with_an_output_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with a command"):
        blocks("```console\nwarning: x\n```\n")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("lakeferry history t --json | jq .x", [["history", "t", "--json"]]),
        ("A=1 lakeferry ls . && lakeferry gc . > out", [["ls", "."], ["gc", "."]]),
        ("sudo --user=x /opt/bin/lakeferry doctor  # why", [["doctor"]]),
        ('spark-submit "$(x -m lakeferry.jobs path)" \\\n  files t > f', [["files", "t"]]),
        ("lakeferry ls . | jq '.a | lakeferry'", [["ls", "."]]),
        ("pip install lakeferry", []),
        ("podman build --tag lakeferry .", []),
    ],
)
def test_the_calls_of_a_line_are_found(line: str, found: list[list[str]]) -> None:
    assert list(calls(line)) == found


def test_a_command_is_parsed_as_the_program_does() -> None:
    ctx = parse(["redirect", "enable", "a", "b", "--mode", "writer-only", "--json"])
    assert ctx.params["mode"] == "writer-only"
    with pytest.raises(click.UsageError, match="No such option"):
        parse(["redirect", "enable", "a", "b", "--modus", "x"])
    with pytest.raises(click.UsageError, match="no command"):
        parse(["redirekt"])


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("pushed 3 blocks, 3 objects of 17.9 KiB", "pushed 12 blocks, 1 objects of 1,024 B"),
        ("head: f162023feab9b4b7…", "head: f16204476ab4b0b4a93a0ce7c7d2a7"),
        ("state    READY", "state: READY"),
        ("writers waited  36 ms", "writers waited: 1.2 s"),
        ("lf_c83440a0819d4e17_…", "lf_0123456789abcdef_Zm9v"),
        ("Move it? [y/N]: y", ""),
        ("…", ""),
    ],
)
def test_what_varies_isnt_compared(shown: str, printed: str) -> None:
    assert missing((shown,), printed, {}) == []


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("pushed 3 blocks", "pulled 3 blocks"),
        ("state: READY", "state: NORMAL"),
        ("target: s3://new", "source: s3://new"),
        ("up to date: f162023feab9b4b7…", "head: f162023feab9b4b7"),
        ("the tables are equal", "the tables are equal but for rows"),
    ],
)
def test_words_are_compared(shown: str, printed: str) -> None:
    assert missing((shown,), printed, {}) == [shown]


def test_places_of_the_run_are_those_of_the_page() -> None:
    names = {"/tmp/w/s3/": "s3://", "file:///tmp/w/s3/": "s3://"}
    assert missing(("target: s3://new/t",), "target: file:///tmp/w/s3/new/t", names) == []
