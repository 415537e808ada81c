"""The notebook in examples/ is run cell by cell in a kernel, as its reader would."""

from ast import literal_eval
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(1200)]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
CELL_S = 400
OF_THE_JVM = ("java.", "scala.", "Traceback", "WARN ", "ERROR ", "Py4J")


def notebook() -> nbformat.NotebookNode:
    read: nbformat.NotebookNode = nbformat.reads(NOTEBOOK.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    return read


def shown(cell: nbformat.NotebookNode) -> str:
    (result,) = [output for output in cell.outputs if output.output_type == "execute_result"]
    kinds = ("text/vnd.mermaid", "text/html", "text/plain")
    return str(next(result.data[kind] for kind in kinds if kind in result.data))


NOTE_ROWS = """
from everflow.instance.thread.batch_counts import tables

rows, write = [], tables._write
tables._write = lambda text: (write(text), rows.append(text))
"""
AWAIT_ROWS = 'wait_until(lambda: rows, 60, "the printed rows")'
"""A thread of its own prints the rows, some ms behind the commit. Jupyter shows them whenever they
come; this client drops what comes between two cells."""


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = notebook().cells
    assert [
        cell.id
        for cell in cells
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count)
    ] == []


def test_the_notebook_runs_from_the_first_cell_to_the_last(tmp_path: Path) -> None:
    run = notebook()
    (start,) = [cell for cell in run.cells if cell.id == "start"]
    start.source = f"{NOTE_ROWS}\n{start.source}\n{AWAIT_ROWS}"
    NotebookClient(run, timeout=CELL_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = {cell.id: cell for cell in run.cells}
    assert '[("cups")]' in shown(cells["topology"])
    assert shown(cells["topology"]).startswith("flowchart TD")
    assert "RUNNING" in shown(cells["look"])
    assert "2 active" in shown(cells["look"])
    assert literal_eval(shown(cells["query"])) == {"ada": 3, "bob": 2}
    assert shown(cells["spark"]) == "5"
    assert literal_eval(shown(cells["change"])) == {"ada": 7, "bob": 2}, (
        "the workers must not keep the old function"
    )
    said = "".join(
        output.text
        for cell in run.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )
    assert "--- cups so far" in said, "rows come below the cell that started the instance"
    assert [line for line in said.splitlines() if any(word in line for word in OF_THE_JVM)] == []
