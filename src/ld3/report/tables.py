"""Tables and sentences for the terminal, no wider than it is; numbers by significant digits."""

import shutil
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest

GAP = "  "
NARROW = 12  # characters that a column of text keeps


def terminal_width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrapped(text: str, indent: str = "") -> list[str]:
    """A sentence in lines that fit the terminal; those after the first begin with `indent`."""
    return textwrap.wrap(
        text, terminal_width(), subsequent_indent=indent, break_on_hyphens=False
    ) or [""]


def table_lines(
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int | None = None,
    whole: Collection[int] = (),
    labels: int = 1,
) -> Iterator[str]:
    """Lines of a table, its head first; columns numbered in `right` are set flush right.

    A table that is wider than `width`, by default the terminal, has its text wrapped, but not in
    `right` and `whole`. Columns that do not fit even so follow below, beside the first `labels`
    columns once more.
    """
    width = width or terminal_width()
    columns = list(range(len(rows[0])))
    widths = _widths(rows, {*right, *whole}, columns, width)
    while columns:
        shown = columns[: labels + 1]  # at least one column beside the labels
        while len(shown) < len(columns) and _total(widths, columns[: len(shown) + 1]) <= width:
            shown.append(columns[len(shown)])
        for row in rows:
            yield from _row(row, shown, widths, right)
        left = columns[len(shown) :]
        columns = [*columns[:labels], *left] if left else []
        if columns:
            yield ""


def _widths(
    rows: Sequence[Sequence[str]], whole: Collection[int], columns: list[int], width: int
) -> list[int]:
    """As wide as the widest cell; columns of text are narrowed where that adds the fewest lines."""
    widths = [max(len(row[column]) for row in rows) for column in columns]
    least = [
        wide if c in whole else min(wide, max(NARROW, _longest_word(rows, c, width // 3)))
        for c, wide in enumerate(widths)
    ]
    while _total(widths, columns) > width:
        spare = [c for c in columns if widths[c] > least[c]]
        if not spare:
            break
        widths[min(spare, key=lambda c: (_more_lines(rows, c, widths[c]), -widths[c]))] -= 1
    return widths


def _more_lines(rows: Sequence[Sequence[str]], column: int, width: int) -> int:
    """Lines that a column needs if it is one narrower than `width`, about."""
    lengths = [len(row[column]) for row in rows]
    return sum(-(-n // (width - 1)) - -(-n // width) for n in lengths if n)


def _longest_word(rows: Sequence[Sequence[str]], column: int, limit: int) -> int:
    words = (word for row in rows for word in row[column].split())
    return min(limit, max((len(word) for word in words), default=0))


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[c] for c in columns) + len(GAP) * (len(columns) - 1)


def _row(
    row: Sequence[str], columns: Sequence[int], widths: Sequence[int], right: Collection[int]
) -> Iterator[str]:
    """One row, in as many lines as its longest cell needs."""
    cells = {
        c: [row[c]]
        if len(row[c]) <= widths[c]
        else textwrap.wrap(row[c], widths[c], break_on_hyphens=False)
        for c in columns
    }
    for parts in zip_longest(*cells.values(), fillvalue=""):
        line = (
            part.rjust(widths[c]) if c in right else part.ljust(widths[c])
            for c, part in zip(columns, parts, strict=True)
        )
        yield GAP.join(line).rstrip()


def markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def ratio_text(value: float) -> str:
    """Two digits after the point, and below 0.1 two significant ones: 1.20, 0.0026."""
    return f"{value:.2f}" if value >= 0.1 else significant(value, 2)


def significant(value: float, digits: int = 3) -> str:
    """A number by its significant digits: 0.000102, 0.0408, 12.3; very large and very small ones
    with an exponent."""
    if value != value or not 1e-7 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    text = f"{value:#.{digits}g}"
    return f"{Decimal(text):f}".rstrip(".") if "e" in text else text.rstrip(".")
