"""Tables for the terminal: columns as wide as their widest cell, numbers by significant digits."""

from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal


def table_lines(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Lines of a table, its head first; columns numbered in `right` are set flush right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def significant(value: float, digits: int = 3) -> str:
    """A number by its significant digits: 0.000102, 0.0408, 12.3; very large and very small ones
    with an exponent."""
    if value != value or not 1e-7 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    text = f"{value:#.{digits}g}"
    return f"{Decimal(text):f}".rstrip(".") if "e" in text else text.rstrip(".")
