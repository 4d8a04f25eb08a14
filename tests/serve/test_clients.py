"""The clients that people use: openai's, curl, and a page mounted in another app."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

openai = pytest.importorskip("openai")
from conftest import Served  # noqa: E402


@pytest.fixture(scope="module")
def server(model_folder):
    server = Served(model_folder, "--quiet", env={"MATRYO_API_KEYS": "k" * 20})
    yield server
    server.stop()


@pytest.mark.filterwarnings("default")
def test_openai_for_python(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k" * 20, max_retries=0) as client:
        for dim in (8, 128):
            plain = client.embeddings.create(model="tiny", input=["cat", "dog bark"], dimensions=dim)  # sends base64
            floats = client.embeddings.create(
                model="tiny", input=["cat", "dog bark"], dimensions=dim, encoding_format="float"
            )
            for one, other in zip(plain.data, floats.data, strict=True):
                assert len(one.embedding) == dim and abs(np.linalg.norm(one.embedding) - 1) < 1e-5
                np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)
        assert plain.usage.total_tokens > 0 and plain.model == "tiny"
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model="tiny", input="cat", dimensions=4096)
        assert refused.value.param == "dimensions"
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="other", input="cat")
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(server):
    command = [
        "curl",
        "--silent",
        "--fail",
        f"{server.url}/v1/embeddings",
        "-H",
        "content-type: application/json",
        "-H",
        f"authorization: Bearer {'k' * 20}",
        "-d",
        '{"model": "tiny", "input": "a cat", "dimensions": 8}',
    ]
    assert '"embedding":[' in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_examples_of_the_page_run(model_folder, tmp_path):
    from matryo import Index

    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    Index.create(tmp_path / "idx", nesting=[8, 32]).close()
    server = Served(f"minilm={model_folder}", "--index", tmp_path / "idx", "--writable", "--quiet")
    try:
        blocks = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "curl" in block]
        printed = [run(block.replace("http://127.0.0.1:8080", server.url)) for block in blocks]
        assert len(blocks) == 3 and printed[0].count('"embedding":') == 2 and '"legs":4' in printed[1]
        assert printed[2] == re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
        for code in re.findall(r"```python\n(from openai.*?)```", page, re.DOTALL):
            exec(code.replace("http://127.0.0.1:8080", server.url) + "client.close()\n", {})
    finally:
        server.stop()


def run(block):
    quiet = block.replace("curl ", "curl --silent --show-error ")
    done = subprocess.run(["bash", "-c", quiet], capture_output=True, text=True)
    assert done.returncode == 0 and '"error"' not in done.stdout, done.stdout + done.stderr
    return done.stdout
