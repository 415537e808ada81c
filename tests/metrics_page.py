"""The table of docs/guide/metrics.md, made of the code; `made_pages` puts it in."""

from everflow.observe.figures import FIGURES


def table() -> str:
    rows = [
        f"| `{figure.name}` | {figure.kind} | {', '.join(figure.labels)} | {figure.text} |"
        for figure in FIGURES
    ]
    return "\n".join(["| name | kind | labels | meaning |", "| --- | --- | --- | --- |", *rows, ""])
