"""Stage 7: K rows of a matrix that stand for all N of them, with weights."""

from derts.facility_location.selecting import Selection, select, select_file

__all__ = ["Selection", "select", "select_file"]
