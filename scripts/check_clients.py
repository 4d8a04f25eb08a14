"""Check a real server with the clients of other projects, and with requests generated from its description.

    python scripts/check_clients.py .venv-clients

The folder is an environment with schemathesis, langchain-openai, llama-index-embeddings-openai-like and litellm, and
with openai's package of npm in its node_modules; `make clients` makes it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_SECONDS = "240"   # that schemathesis may take
_VECTORS = """
import math, os
def check(vectors, dim):
    assert [len(one) for one in vectors] == [dim] * 2, [len(one) for one in vectors]
    assert all(abs(math.hypot(*one) - 1) < 1e-4 for one in vectors)
"""
_PROGRAMS = {
    "langchain-openai": """
from langchain_openai import OpenAIEmbeddings
model = OpenAIEmbeddings(model="tiny", base_url=os.environ["URL"], api_key="unused", dimensions=32,
                         check_embedding_ctx_length=False)
check(model.embed_documents(["a cat", "a dog"]), 32)
""",
    "llama-index": """
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
model = OpenAILikeEmbedding(model_name="tiny", api_base=os.environ["URL"], api_key="unused", dimensions=32)
check(model.get_text_embedding_batch(["a cat", "a dog"]), 32)
""",
    "litellm": """
import litellm
answer = litellm.embedding("openai/tiny", input=["a cat", "a dog"], dimensions=32, api_base=os.environ["URL"],
                           api_key="unused", encoding_format="float", allowed_openai_params=["dimensions"])
check([one["embedding"] for one in answer.data], 32)
""",
}
_NODE = """
const OpenAI = require("openai");
const client = new OpenAI({ baseURL: process.env.URL, apiKey: "unused" });
client.embeddings.create({ model: "tiny", input: ["a cat", "a dog"], dimensions: 32 }).then((answer) => {
  for (const { embedding } of answer.data) {
    const norm = Math.hypot(...embedding);
    if (embedding.length !== 32 || Math.abs(norm - 1) > 1e-4) throw new Error(`${embedding.length}, norm ${norm}`);
  }
});
"""


def main() -> int:
    """Start a server with a tiny model and an index, and run every client against it."""
    clients = Path(sys.argv[1]).resolve()
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        options = ["--index", str(folder / "idx"), "--writable", "--port", "0", "--quiet"]
        command = [sys.executable, "-m", "matryo", "serve", str(folder / "tiny"), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().rsplit(" ", 1)[1].strip().rstrip("/")
            environment = {
                **os.environ,
                "URL": f"{url}/v1",
                "DO_NOT_TRACK": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            }
            programs = {
                label: [str(clients / "bin/python"), "-c", _VECTORS + code] for label, code in _PROGRAMS.items()
            }
            programs["openai (npm)"] = ["node", "-e", _NODE]
            load = "/v1/indexes/{name}/load"   # schemathesis makes no NDJSON; tests/hostile/attacks do
            programs["schemathesis"] = [str(clients / "bin/schemathesis"), "run", f"{url}/openapi.json", "--checks",
                                        "not_a_server_error,status_code_conformance,content_type_conformance,"
                                        "response_schema_conformance", "--max-examples", "800", "--max-time", _SECONDS,
                                        "--request-timeout", "60", "--seed", "0", "--exclude-path", load]  # fmt: skip
            for label, program in programs.items():
                done = subprocess.run(program, cwd=clients, env=environment, capture_output=True, text=True)
                print(f"{label}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
                if label == "schemathesis":
                    print(*(line for line in done.stdout.splitlines() if re.search(r"\d+ generated", line)), sep="\n")
                if done.returncode:
                    failed.append(label)
                    print((done.stdout + done.stderr)[-4000:])
            server.terminate()
    return len(failed)


def make(folder: Path) -> None:
    """A BERT that nobody trained, and an index of texts."""
    from matryo import Index
    from matryo.data import Tokenizer
    from matryo.encoders import Bert, BertConfig

    tokenizer = Tokenizer.train(["a cat purrs", "a dog barks"], vocabulary=64)
    Bert(BertConfig.named("bert-tiny", vocab_size=tokenizer.vocabulary)).save(folder / "tiny")
    tokenizer.save(folder / "tiny")
    Index.create(folder / "idx", nesting=[8, 32]).close()


if __name__ == "__main__":
    sys.exit(main())
