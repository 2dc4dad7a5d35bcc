"""Writes the reference of metrics, as a server that has just started shows them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from lakeferry.server.metrics import Metrics

_PROCESS = "process_"


def metrics() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return name, kind, meaning and labels of each metric of the server itself."""
    server = Metrics()
    labels = {
        name: tuple(value._labelnames)
        for value in vars(server).values()
        if (name := getattr(value, "_name", None)) is not None
    }
    found = []
    for family in text_string_to_metric_families(server.shown().decode()):
        if family.name.startswith(_PROCESS) or family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.append((name, family.type, family.documentation, labels.get(family.name, ())))
    return found


def metric_page() -> str:
    """Return the reference as Markdown."""
    rows = ["| metric | kind | labels | |", "|---|---|---|---|"]
    for name, kind, meaning, labels in metrics():
        shown = " ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {kind} | {shown} | {meaning} |")
    return "\n".join([*rows, ""])
