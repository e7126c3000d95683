"""From finished runs to tables, one HTML page, and the ledger of results."""

from endocil.report.grouping import label
from endocil.report.ledger import AlreadyInLedgerError, add_to_ledger, find_in_ledger, read_ledger
from endocil.report.ledger_tables import ablation_table, costs_table, ledger_table
from endocil.report.markers import insert_tables
from endocil.report.page import write_page
from endocil.report.paper import places
from endocil.report.reproduction import reproduction
from endocil.report.runs import RunRecord, read_run
from endocil.report.seeds import told_by_seeds
from endocil.report.tables import Table, comparison

__all__ = [
    "AlreadyInLedgerError",
    "RunRecord",
    "Table",
    "ablation_table",
    "add_to_ledger",
    "comparison",
    "costs_table",
    "find_in_ledger",
    "insert_tables",
    "label",
    "ledger_table",
    "places",
    "read_ledger",
    "read_run",
    "reproduction",
    "told_by_seeds",
    "write_page",
]
