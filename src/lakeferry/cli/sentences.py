"""The steps of a dry run as sentences.

``--json`` prints the steps themselves. A step that isn't listed here is told by its name and its
values, so that nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakeferry.cli.render import counted, size

Step = Mapping[str, Any]

_STATES = {
    "ENABLE-REDIRECT-IN-PROGRESS": "the move has begun and writers wait",
    "READY": "the table has moved and its old path leads to the new place",
    "DROP-REDIRECT-IN-PROGRESS": "the table comes back and writers wait",
    "NORMAL": "the table is open and has no redirect",
    "SYNC": "what changed at the other place is here",
}


def sentence(step: Step) -> str:
    """Return what a step of a plan would do."""
    told = _SENTENCES.get(str(step["op"]))
    if told is not None:
        try:
            return f"would {told(step)}"
        except KeyError:
            pass
    rest = ", ".join(
        f"{_words(key)} {_value(value)}"
        for key, value in step.items()
        if key != "op" and value is not None
    )
    return f"would {_words(str(step['op']))}{': ' if rest else ''}{rest}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{_words(str(key))} {_value(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _commit(step: Step) -> str:
    if "operation" in step:
        return f"commit the new protocol: {_protocol(step['protocol'])}"
    state = _STATES.get(str(step["state"]), str(step["state"]))
    return f"commit version {step['version']} of {step['table']}: {state}"


def _protocol(protocol: Mapping[str, Any]) -> str:
    features = sorted({*protocol["readerFeatures"], *protocol["writerFeatures"]})
    numbers = f"reader {protocol['minReaderVersion']}, writer {protocol['minWriterVersion']}"
    return f"{numbers}, with {', '.join(features)}" if features else numbers


def _move(step: Step) -> str:
    if step.get("error"):
        return f"fail to move {step['source']}: {step['error']['message']}"
    return f"move {step['source']} to {step['target']}"


_SENTENCES: dict[str, Callable[[Step], str]] = {
    "barrier": lambda _: "commit an empty version with a checkpoint, as a barrier",
    "checkpoint": lambda step: (
        f"write a checkpoint of version {step['version']} of {step['table']}"
    ),
    "claim": lambda step: f"reserve {step['table']} for this move",
    "clear": lambda step: f"delete what an earlier move left at {step['table']}",
    "commit": _commit,
    "compare": lambda step: f"compare {step['a']} with {step['b']}",
    "copy_changes": lambda step: f"copy what changed from {step['from']} to {step['to']}",
    "copy_commits": lambda step: (
        f"copy the commits from version {step['from_version']} on "
        f"from {step['from']} to {step['to']}"
    ),
    "copy_data": lambda step: (
        f"copy {counted(step['files'], 'data file')} of "
        f"{size(step['bytes'])} from {step['from']} to {step['to']}"
    ),
    "copy_log": lambda step: (
        f"copy {counted(step['files'], 'log file')} from {step['from']} to "
        f"{step['to']}" + (", with absolute paths" if step["rewrite"] else "")
    ),
    "copy_rest": lambda step: f"copy the rest from {step['from']} to {step['to']}",
    "delete_copies": lambda step: f"delete what was copied to {step['table']}",
    "move": _move,
    "prepare": lambda step: f"prepare the table: {_words(str(step['what']))}",
    "publish": lambda step: f"make {step['table']} a table",
    "register": lambda step: f"register {step['name']} for {step.get('table') or step['location']}",
    "truncate_history": lambda _: "delete the history that still has the feature",
    "unregister": lambda step: f"remove the name {step['name']} of {step['table']}",
    "write_checkpoint": lambda step: (
        "write a checkpoint" + (f" of version {step['version']}" if "version" in step else "")
    ),
}
