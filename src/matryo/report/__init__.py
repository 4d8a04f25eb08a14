"""The report: figures and one HTML page, drawn from stored rows."""

from matryo.report.build import build_report, check_out
from matryo.report.material import GradCamStrip

__all__ = ["GradCamStrip", "build_report", "check_out"]
