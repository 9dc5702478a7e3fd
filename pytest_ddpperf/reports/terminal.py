"""A table for the terminal."""

from __future__ import annotations

from pytest_ddpperf.reports.table import Table


def render(table: Table) -> str:
    """The table as plain text: its title, the rows, then the notes, a line each."""
    from tabulate import tabulate

    numbers = len(table.headers) - table.left - 1
    lines = [table.title] if table.title else []
    if table.rows:
        grid = tabulate(
            [table.headers, *table.rows],
            tablefmt="simple",
            disable_numparse=True,  # the cells are text that is already formatted
            colalign=("left",) * table.left + ("right",) * numbers + ("left",),
        )
        # Headers given as such would make every column two characters wider; as a row they only lack their rule,
        # which stands above and below the rows.
        rule, *body, _ = (line.rstrip() for line in grid.splitlines())
        height = max(header.count("\n") for header in table.headers) + 1
        lines += [*body[:height], rule, *body[height:]]
    return "\n".join([*lines, *table.notes])
