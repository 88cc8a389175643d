"""Methods against each other, on one model, with the same pairs and the same held-out noise."""

from ld3.compare.lines import compare_lines
from ld3.compare.run import run_compare, write_files
from ld3.compare.spec import CompareSpec, groups

__all__ = ["CompareSpec", "compare_lines", "groups", "run_compare", "write_files"]
