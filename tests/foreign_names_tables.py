"""Tables of pages for who comes from elsewhere, of `everflow.foreign_names`; for `made_pages`."""

from everflow.foreign_names import ForeignName, Names, names_of


def table(names: Names, theirs: str) -> str:
    """One class: their names, in the order of the data; names with one answer share a row."""
    rows: dict[ForeignName, list[str]] = {}
    for name, entry in names.items():
        rows.setdefault(entry, []).append(name)
    lines = [f"| {theirs} | here | for example, or instead |", "| --- | --- | --- |"]
    for entry, listed in rows.items():
        here = "(not there)" if entry.here is None else f"`{entry.here}`"
        said = entry.advice if entry.here is None else f"`{entry.advice}`"
        lines.append(f"| {', '.join(f'`{name}`' for name in listed)} | {here} | {_cell(said)} |")
    return "\n".join(lines) + "\n"


def tables(api: str) -> dict[str, str]:
    """The table of every class, of the names of one API."""
    return {owner: table(names, api) for owner, names in names_of(api).items()}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
