"""What an evaluation found, for people and programs: console tables, JSON, CSV, and one HTML page."""

from disk_ops.evaluation.report.console import print_tables
from disk_ops.evaluation.report.writing import refuse_other_results, write_report

__all__ = ["print_tables", "refuse_other_results", "write_report"]
