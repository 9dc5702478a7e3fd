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
            table.rows,
            headers=table.headers,
            tablefmt="simple",
            disable_numparse=True,  # the cells are text that is already formatted
            colalign=("left",) * table.left + ("right",) * numbers + ("left",),
        )
        lines += [line.rstrip() for line in grid.splitlines()]
    return "\n".join([*lines, *table.notes])
