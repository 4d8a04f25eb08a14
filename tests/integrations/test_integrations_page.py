"""The examples of docs/integrations.md print what the page says."""

import contextlib
import io
import re
from pathlib import Path

from matryo import Index

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    outputs = iter(re.findall(r"```text\n(.*?)```", page, re.DOTALL))
    variables = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        out = io.StringIO()
        if "index.plan(" in code:   # of the three documents so far, no recall can be promised
            variables["store"].add_texts([f"document {n}" for n in range(500)])
        with contextlib.redirect_stdout(out):
            exec(code, variables)
        assert not out.getvalue() or out.getvalue() == next(outputs)
    assert next(outputs, None) is None and len(Index.open("nodes")) == 2
