"""Turns the steps of a dry run into sentences.

``--json`` prints the steps themselves. A step that isn't listed here is shown by its name and its
values, so that nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lakeferry.readable import counted, size

PlanStep = Mapping[str, Any]

_CENT_USD, _LEAST_USD = 0.01, 0.0001

_STATES = {
    "ENABLE-REDIRECT-IN-PROGRESS": "the move has begun and writers wait",
    "READY": "the table has moved and its old path leads to the new place",
    "DROP-REDIRECT-IN-PROGRESS": "the table is being brought back and writers wait",
    "NORMAL": "the table is open and has no redirect",
    "SYNC": "the changes at the target are included",
}

_WAYS = {
    ("store", True): "copied by the store",
    ("store", False): "copied by the store if it can, otherwise streamed through this machine",
    ("stream", True): "streamed through this machine",
}

_REASONS = {
    "unfinished_push": "left by an unfinished push",
    "unreached": "no dataset needs it",
    "leftover": "its upload was never completed",
}


def sentence(step: PlanStep) -> str:
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


def travel(step: PlanStep) -> Iterator[str]:
    """Yield sentences about how the files of a copy would travel, for how long and at what cost."""
    ways = step.get("ways") or ()
    for way in ways:
        files = f"{counted(way['files'], 'file')}, {size(way['bytes'])}"
        place = way["from"]
        where = "" if place == step.get("from", place) else f" in {place}"
        yield f"{files}{where}: {_WAYS[way['way'], way['certain']]}"
    if ways and step["duration_basis"] is not None:
        yield f"about {_duration(step['duration_ms'])}, {step['duration_basis']}"
    if (read := step.get("verify_bytes")) is not None:
        yield (
            f"{size(read)} are read again to compare them: about "
            f"{_duration(step['verify_duration_ms'])}, {step['verify_duration_basis']}"
        )
    if requests := step.get("requests"):
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in requests.items())
        cost, basis = step["request_cost_usd"], step["price_basis"]
        price = "" if cost is None else f"; {_money(cost)} by {basis}"
        yield f"about {counted(sum(requests.values()), 'request')} ({kinds}){price}"


def _money(usd: float) -> str:
    """Return an amount with two digits that count."""
    if usd < _LEAST_USD:
        return f"less than ${_LEAST_USD}"
    return f"~${usd:,.2f}" if usd >= _CENT_USD else f"~${usd:.2g}"


def _duration(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length:
            return counted(round(seconds / length), unit)
    return counted(max(1, round(seconds)), "second")


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


def _commit(step: PlanStep) -> str:
    if "operation" in step:
        return f"commit the new protocol: {_protocol(step['protocol'])}"
    if step.get("frozen"):
        state = "nobody writes to the table until it is thawed"
    elif "rules" in step:
        state = f"new rules: {'; '.join(step['rules']) or 'none'}"
    else:
        state = _STATES.get(str(step["state"]), str(step["state"]))
    return f"commit version {step['version']} ({state}) to {step['table']}"


def _protocol(protocol: Mapping[str, Any]) -> str:
    features = sorted({*protocol["readerFeatures"], *protocol["writerFeatures"]})
    numbers = f"reader {protocol['minReaderVersion']}, writer {protocol['minWriterVersion']}"
    return f"{numbers}, with {', '.join(features)}" if features else numbers


def _amount(step: PlanStep) -> str:
    if "files" not in step:
        return ""
    return f": {counted(step['files'], 'file')} of {size(step['bytes'])}"


def _delete(step: PlanStep) -> str:
    if "because" in step:
        return f"delete {step['path']} ({_REASONS.get(step['because'], step['because'])})"
    if "from" in step:
        return (
            f"delete {counted(len(step['files']), 'file')} of an earlier export at {step['from']}"
        )
    return f"delete the table at {step['table']}"


def _add_features(step: PlanStep) -> str:
    lost = [
        f"{client['name']} can't {'read or write' if client['reads'] else 'write'} it any more"
        for client in step["clients"]
    ]
    return (
        f"add table features to {step['table']}: {', '.join(step['features'])}; {'; '.join(lost)}"
    )


def _create(step: PlanStep) -> str:
    told = f"create the managed table {step['name']} at {step['table']}"
    texts = [f"{key} = {value}" for key, value in step["properties"].items()]
    added = [("table features", step["features"]), ("properties", texts)]
    more = " and ".join(f"the {what} {', '.join(each)}" for what, each in added if each)
    return f"{told}, and add what its catalog requires: {more}" if more else told


def _abandon(step: PlanStep) -> str:
    lost = step["lost_versions"]
    loss = "an unknown number of versions" if lost is None else counted(lost, "version")
    return f"abandon the target {step['table']}, and lose {loss}"


def _moved(step: PlanStep) -> str:
    blocks, objects = counted(step["blocks"], "block"), counted(step["objects"], "object")
    return f"{blocks} and up to {objects} of {size(step['bytes'])}"


def _move(step: PlanStep) -> str:
    if step.get("error"):
        return f"fail to move {step['source']}: {step['error']['message']}"
    return f"move {step['source']} to {step['target']}"


_SENTENCES: dict[str, Callable[[PlanStep], str]] = {
    "abandon": _abandon,
    "add_features": _add_features,
    "barrier": lambda _: "commit an empty version with a checkpoint, as a barrier",
    "checkpoint": lambda step: (
        f"write a checkpoint of version {step['version']} of {step['table']}"
    ),
    "claim": lambda step: f"reserve {step['table']} for this move",
    "clear": lambda step: f"delete what an earlier move left at {step['table']}",
    "commit": _commit,
    "compare": lambda step: f"compare {step['a']} with {step['b']}",
    "copy_missing": lambda step: (
        f"copy {counted(step['files'], 'missing file')} from {step['from']} to {step['to']}"
    ),
    "copy_changes": lambda step: (
        f"copy what changed from {step['from']} to {step['to']}{_amount(step)}"
    ),
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
    "copy_rest": lambda step: (
        f"copy what {step['to']} still lacks from {step['from']}{_amount(step)}"
    ),
    "create": _create,
    "delete": _delete,
    "delete_copies": lambda step: f"delete what was copied to {step['table']}",
    "drop": lambda step: f"drop the managed table {step['name']} at {step['table']}",
    "export_log": lambda step: (
        f"write {counted(len(step['files']), 'log file')} of version {step['version']} "
        f"to {step['to']}"
    ),
    "forget": lambda step: f"undo the move to {step['table']}, and leave the copies there",
    "forget_table": lambda step: f"note that there is no table at {step['table']} any more",
    "move": _move,
    "pause": lambda step: (
        "ask all runs to start no more moves"
        + (", and to stop those that run" if step["stop_running"] else "")
    ),
    "plan_move": lambda step: (
        f"plan to move {step['source']} to {step['target']} in wave {step['wave']}"
    ),
    "prepare": lambda step: f"prepare the table: {_words(str(step['what']))}",
    "prune": lambda step: f"delete the older export at {step['location']}",
    "publish": lambda step: f"publish the log at {step['table']}",
    "pull": lambda step: f"pull {_moved(step)}",
    "push": lambda step: f"push {_moved(step)}",
    "record_table": lambda step: f"record the table at {step['table']}",
    "register": lambda step: f"register {step['name']} for {step.get('table') or step['location']}",
    "rename": lambda step: f"give the table at {step['table']} the name {step['name']}",
    "set_properties": lambda step: (
        f"set the properties again that the catalog of {step['table']} requires"
    ),
    "stage": lambda step: f"have the catalog allocate a place for {step['name']}",
    "take_over": lambda step: (
        f"copy {counted(len(step['files']), 'log file')} from an earlier export to {step['to']}"
    ),
    "try": lambda step: f"try the catalog with a throwaway table, {step['name']}",
    "truncate_history": lambda _: "delete the history that still has the feature",
    "unregister": lambda step: f"remove the name {step['name']} of {step['table']}",
    "withdraw_plan": lambda step: f"take {step['table']} out of the plan",
    "write_report": lambda step: f"write {step['path']}",
    "write_checkpoint": lambda step: (
        "write a checkpoint" + (f" of version {step['version']}" if "version" in step else "")
    ),
}
