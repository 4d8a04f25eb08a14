"""A tiny model and an index to serve, the app called without sockets, and one real server process for all tests."""

import asyncio
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_SERVER = all(importlib.util.find_spec(name) for name in ("uvicorn", "orjson", "httptools"))
collect_ignore_glob = [] if HAS_SERVER else ["test_*.py"]
if not HAS_TORCH:
    collect_ignore_glob += ["test_embeddings.py", "test_clients.py", "test_images.py"]
WORDS = ["cat", "dog", "purr", "bark", "fish", "swim", "bird", "fly", "tree", "leaf", "stone", "river", "sun", "moon"]


def call(service, method, path, body=None, headers=(), raw=None):
    """Send one request to an ASGI app: the status, the headers and the JSON of the answer."""
    return asyncio.run(acall(service, method, path, body, headers, raw))


async def acall(service, method, path, body=None, headers=(), raw=None, extra=None):
    content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    kinds = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    own = {name.lower().encode(): value.encode() for name, value in headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [pair for pair in kinds if content and pair[0] not in own] + list(own.items()),
        **(extra or {}),
    }
    parts, sent = [content], []

    async def receive():
        return {"type": "http.request", "body": parts.pop() if parts else b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await service(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    answer = SimpleNamespace(
        status=sent[0]["status"], headers={k.decode(): v.decode() for k, v in sent[0]["headers"]}, body=body, json=None
    )
    if answer.headers.get("content-type") == "application/json" and body:
        answer.json = json.loads(body)
    return answer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A BERT that nobody trained, with a nesting and prompts, as a transformers folder."""
    import torch

    from matryo.data import Tokenizer
    from matryo.encoders import Bert, BertConfig

    folder = tmp_path_factory.mktemp("served") / "tiny"
    torch.manual_seed(0)
    tokenizer = Tokenizer.train([" ".join(WORDS)], vocabulary=120)
    bert = Bert(BertConfig.named("bert-tiny", vocab_size=tokenizer.vocabulary, num_hidden_layers=1)).eval()
    bert.save(folder)
    tokenizer.save(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [8, 32, 128]}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    prompts = {"prompts": {"query": "cat ", "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


@pytest.fixture(scope="session")
def rows():
    return np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)


@pytest.fixture
def index_folder(tmp_path, rows):
    """An index of 400 rows with the ids r0 … and the payload {"n": number}."""
    from matryo import Index

    with Index.create(tmp_path / "idx", nesting=[4, 8, 16]) as index:
        index.add(rows, ids=[f"r{n}" for n in range(len(rows))], payload=[{"n": n} for n in range(len(rows))])
    return tmp_path / "idx"


class Served:
    """A server process."""

    def __init__(self, *words, env=None):
        command = [sys.executable, "-m", "matryo", "serve", *map(str, words), "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        line = self.process.stdout.readline()
        assert line.startswith("serving "), self.process.stderr.read()
        self.port = int(line.rsplit(":", 1)[1].strip(" /\n"))
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        sent = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        kind = {"content-type": "application/json"} if body is not None else {}
        with closing(connection):   # also where the server is killed meanwhile
            connection.request(method, path, sent, {**kind, **(headers or {})})
            response = connection.getresponse()
            content = response.read()
        json_answer = response.headers.get("content-type") == "application/json" and content
        return SimpleNamespace(
            status=response.status,
            headers=response.headers,
            body=content,
            json=json.loads(content) if json_answer else None,
        )

    def stop(self, how=signal.SIGTERM):
        """End it, and return its log as objects."""
        self.process.send_signal(how)
        _, log = self.process.communicate(timeout=20)
        return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


@pytest.fixture
def serve():
    """Start servers that end with the test."""
    started = []

    def start(*words, env=None):
        started.append(Served(*words, env=env))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
