"""``print_table``: a stream's records in the terminal or cell of the driver."""

from __future__ import annotations

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import HasEdge
from everflow.dsl.graph_builder import GraphBuilder
from everflow.errors import TopologyError
from everflow.location import user_line
from everflow.topology.graph import PrintNode

MOST_ROWS = 1_000


class Printing(HasEdge):
    """What ends a stream in front of people."""

    graph: GraphBuilder
    node: str

    @builder_call
    def print_table(
        self, title: str | None = None, *, rows: int = 20, name: str | None = None
    ) -> None:
        """Prints the records as rows of a table where the instance runs, a terminal or a notebook's
        cell: of each committed micro-batch the first ``rows``, and at most as many each half a
        second, with how many more there were. For looking; it writes nothing, and nothing waits for
        it. ``title``: stands above it; left out, the name of what comes before."""
        where = user_line()
        if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= MOST_ROWS:
            raise TopologyError(
                f"print_table: rows is a number from 1 to {MOST_ROWS:,}, found {rows!r}; to take "
                f"all records write them: .to('a-topic')",
                where=where,
            )
        if title is not None and not isinstance(title, str):
            raise TopologyError(f"print_table: title is a text, found {title!r}", where=where)
        node_name = self.graph.node_name(name, "KSTREAM-PRINTER-", where)
        self.graph.add(
            PrintNode(
                name=node_name,
                inputs=(self.node,),
                out=self.edge.type,
                where=where,
                title=self.node if title is None else title,
                rows=rows,
            )
        )
