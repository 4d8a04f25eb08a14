"""Export a trained model to a folder that another library loads."""

from matryo.export.folder import export
from matryo.export.formats import FORMATS

__all__ = ["FORMATS", "export"]
