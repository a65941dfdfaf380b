"""What the tables of a report are made of."""

from typing import Literal, NamedTuple


class Column(NamedTuple):
    """One column of a table: a cell a row."""

    head: str
    cells: list[str]
    role: Literal["mark", "setup", "figure"] = "figure"
    # When the table is too wide the columns with a number go, the lowest first, and those with the same one at once.
    drop: int | None = None

    @property
    def width(self) -> int:
        return max(map(len, [*self.head.split("\n"), *self.cells]))
