"""One HTML file that shows a comparison. It computes nothing and needs nothing but itself."""

from ld3.report.page import page, write_report

__all__ = ["page", "write_report"]
