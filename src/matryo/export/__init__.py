"""Export: a trained model as a folder that other libraries load."""

from matryo.export.folder import export
from matryo.export.formats import FORMATS, format_names

__all__ = ["FORMATS", "export", "format_names"]
