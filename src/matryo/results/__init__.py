"""Results of protocols, and stored rows of figures with the command, commit, hardware and versions that gave them.

Every published number is a figure of a row, and a row records enough to measure it again.
"""

from matryo.results.by_dim import figures_by_dim, infer_role, is_share
from matryo.results.provenance import command_line, stamp, versions
from matryo.results.result import Result, SplitResult, as_tuples, table
from matryo.results.rows import ROLES, Row, append_rows, check_may_append, holds_rows, read_rows, write_rows

__all__ = [
    "ROLES", "Result", "Row", "SplitResult", "append_rows", "as_tuples", "check_may_append", "command_line",
    "figures_by_dim", "holds_rows", "infer_role", "is_share", "read_rows", "stamp", "table", "versions",
    "write_rows",
]  # fmt: skip
