"""The cheapest one-to-one assignment, exactly: min over permutations f of sum_i c[i, f(i)].

Rows are added one at a time. A row looks for the cheapest alternating path to a free column in the
reduced costs c - u - v, which prices u and v keep at or above zero (Kuhn 1955; Jonker and Volgenant
1987); along that path the assignment changes by one row. About n^3 operations, vectorised over
columns.
"""

import numpy as np
from numpy.typing import NDArray

from ld3.errors import SpecError


def assign(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """The column of each row, for costs (n, n)."""
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1] or not np.isfinite(cost).all():
        raise SpecError(f"assignment: got costs {cost.shape}, expected finite ones (n, n)")
    n = len(cost)
    row_price, column_price = np.zeros(n), np.zeros(n)
    row_of = np.full(n, -1)  # of each column, -1 while it is free
    for row in range(n):
        reach = np.full(n, np.inf)  # of each column: the cheapest path to it so far
        before = np.full(n, -1)  # the column before it on that path; -1: the new row itself
        open_ = np.ones(n, dtype=bool)
        column, current, length = -1, row, 0.0
        while current >= 0:
            step = length + cost[current] - row_price[current] - column_price
            nearer = open_ & (step < reach)
            reach[nearer], before[nearer] = step[nearer], column
            column = int(np.where(open_, reach, np.inf).argmin())
            open_[column], length, current = False, reach[column], row_of[column]
        closed = ~open_
        closed[column] = False  # the free one keeps its price
        row_price[row] += length
        row_price[row_of[closed]] += length - reach[closed]
        column_price[closed] -= length - reach[closed]
        while column >= 0:  # turn the path around
            previous = int(before[column])
            row_of[column] = row if previous < 0 else row_of[previous]
            column = previous
    columns = np.empty(n, dtype=np.int64)
    columns[row_of] = np.arange(n)
    return columns
