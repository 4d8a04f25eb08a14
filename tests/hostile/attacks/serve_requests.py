"""Send a server requests that are made from its own description, and from anything."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from attacks.outcome import Outcome
from attacks.served import make_index, require
from matryo.serve import app
from matryo.serve.direct import Direct

__all__ = ["require"]

PROMISE = "A server answers any request with a status that its description names, never with an error of its own."
BOUNDED, SOAK = 150, 10_000
_PLACES = st.sampled_from(["idx", "idx", "idx", "tiny", "no", "..", "%2e", "é"])
_TEXTS = st.sampled_from(["a cat", "r0", "idx", "tiny", "", "data:image/png;base64,AAAA", "A" * 88, "\x00", "😀"])
_LEAVES = st.none() | st.booleans() | st.integers(-3, 99) | st.floats() | _TEXTS | st.text(max_size=6)
_NAMES = st.sampled_from(["n", "$lt", "$in", "$and", "stages", "id", "a.b", ""])
_ANYTHING = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=12
)
_VECTORS = st.lists(st.floats(-2, 2, width=32), min_size=16, max_size=16)


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Send ``count`` requests to an index and a tiny model, in this process."""
    outcome = Outcome(0)
    service = app(make_model(folder), make_index(folder), writable=True)
    direct = Direct(service)
    loop = asyncio.new_event_loop()
    paths = json.loads(loop.run_until_complete(send(service, "GET", "/openapi.json", b"", {}))[1])
    schemas = paths["components"]["schemas"]
    operations = [(method.upper(), path, operation) for path, methods in sorted(paths["paths"].items())
                  for method, operation in sorted(methods.items())]  # fmt: skip

    @seeded(seed)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def attempt(data: st.DataObject) -> None:
        method, path, operation = data.draw(st.sampled_from(operations))
        body, kind = data.draw(bodies(operation, schemas))
        place = path.replace("{name}", data.draw(_PLACES))
        sent = data.draw(st.sampled_from([method] * 6 + ["GET", "POST", "PUT", "OPTIONS"]))
        status, answer, headers = loop.run_until_complete(send(service, sent, place, body, kind))
        outcome.attempts += 1
        failure = wrong(status, answer, headers, operation if sent == method else None)
        if sent == "POST" and body and place.encode() in direct.paths:
            own = loop.run_until_complete(directly(direct, place, body, kind))
            if own not in (None, (status, json.loads(answer))):
                failure = f"answered directly with {own}, and with {status} {answer[:200]!r} by the app"
        if failure:
            outcome.failures.append(f"{sent} {place} {kind} {body[:200]!r}: {failure}")

    try:
        attempt()
    finally:
        service.close()
        loop.close()
    return outcome


def wrong(status: int, answer: bytes, headers: dict[bytes, bytes], operation: Any) -> str:
    """The broken promise, or nothing."""
    documented = {405, 404, 200} if operation is None else set(map(int, operation["responses"]))
    if status not in documented or status == 500:
        return f"{status} {answer[:200]!r}"
    if status >= 400:
        error = json.loads(answer)["error"]
        if set(error) != {"message", "type", "param", "code"} or "\n" in error["message"]:
            return f"an error of another shape: {answer[:200]!r}"
    elif operation is not None and status != 307:
        kinds = list(operation["responses"][str(status)]["content"])
        if headers[b"content-type"].decode() not in kinds:
            return f"the content type {headers[b'content-type']!r}"
    return ""


def bodies(operation: Any, schemas: Any) -> st.SearchStrategy[tuple[bytes, dict[str, str]]]:
    """Bodies that fit the description, that fit in part, and that do not."""
    content = operation.get("requestBody", {}).get("content", {"application/json": {"schema": {}}})
    ((kind, own),) = content.items()
    schema = schemas[own["schema"]["$ref"].rpartition("/")[2]] if "$ref" in own["schema"] else {}
    if kind == "application/x-ndjson":
        schema = schemas["Row"]
    fields = schema.get("properties", {"x": {}})
    required = schema.get("required", [])
    values = {name: fitting(field) for name, field in fields.items()}
    usual = st.fixed_dictionaries({name: values.pop(name) for name in required}, optional=values)
    mixed = st.dictionaries(st.sampled_from([*fields, "unknown"]), _ANYTHING, max_size=4)
    document = (usual | usual | mixed | _ANYTHING).map(lambda value: json.dumps(value).encode())
    if kind == "application/x-ndjson":
        document = st.lists(document, max_size=4).map(b"\n".join)
    kinds = st.sampled_from([{"content-type": kind}] * 8 + [{}, {"content-type": "text/plain"}])
    return st.tuples(document | document | st.binary(max_size=40), kinds)


def fitting(schema: Any) -> st.SearchStrategy[Any]:
    """Values that fit a schema, of the sizes that the index and the model have."""
    if "anyOf" in schema:
        return st.one_of(*map(fitting, schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        inner = schema.get("items", {})
        if inner.get("type") == "number":
            return _VECTORS
        return st.lists(fitting(inner), min_size=schema.get("minItems", 0), max_size=3)
    simple = {
        "string": _TEXTS, "boolean": st.booleans(), "null": st.none(),
        "integer": st.integers(schema.get("minimum", -2), 40),
        "object": st.sampled_from([{}, {"n": 3}, {"n": {"$lt": 9}}]),
        "number": st.floats(schema.get("minimum", -2), schema.get("maximum", 2)),
    }  # fmt: skip
    return simple.get(kind, _ANYTHING)


async def send(
    service: Any, method: str, path: str, body: bytes, kind: dict[str, str]
) -> tuple[int, bytes, dict[bytes, bytes]]:
    """One request to the ASGI app."""
    headers = [(name.encode(), value.encode()) for name, value in kind.items()]
    headers += [(b"content-length", str(len(body)).encode())] if body else []
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "headers": headers}
    parts, sent = [body], list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop() if parts else b"", "more_body": False}

    async def answer(message: Any) -> None:
        sent.append(message)

    await service(scope, receive, answer)
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:]), dict(sent[0]["headers"])


async def directly(direct: Direct, path: str, body: bytes, kind: dict[str, str]) -> tuple[int, Any] | None:
    """The answer without a call of the app; None if it is left to the app."""
    future = asyncio.get_running_loop().create_future()
    fields = {name.encode(): value.encode() for name, value in kind.items()}

    def reply(status: int, head: bytes, body: bytes) -> None:   # noqa: ARG001 - as Exchange
        future.set_result((status, json.loads(body)))

    exchange: Any = SimpleNamespace(fields=fields, start=0.0, begin=lambda: None, reply=reply)
    return await future if direct.answer(exchange, path.encode(), body) else None


def make_model(folder: Path) -> Path:
    """A BERT that nobody trained, with vectors of the length of the index."""
    import torch

    from matryo.data import Tokenizer
    from matryo.encoders import Bert, BertConfig

    torch.manual_seed(0)
    tokenizer = Tokenizer.train(["a cat purrs", "a dog barks"], vocabulary=64)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    Bert(BertConfig(vocab_size=tokenizer.vocabulary, max_position_embeddings=32, **sizes)).save(folder / "tiny")
    tokenizer.save(folder / "tiny")
    return folder / "tiny"
