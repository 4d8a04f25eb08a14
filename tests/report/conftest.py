"""One report of everything, built once."""

import pytest
from report_rows import every_kind, pictures, strips

from matryo.report import build_report


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The folder of a report with a row of every kind."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    out = tmp_path_factory.mktemp("report") / "whole"
    build_report(
        every_kind(), out, title="Emoji at every dim", pictures=pictures(), strips=strips(), credits=["Art: CC-BY 4.0"]
    )
    return out
