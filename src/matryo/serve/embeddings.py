"""``POST /v1/embeddings`` as OpenAI's clients send it, and ``GET /v1/models``.

Vectors are truncated to ``dimensions``, then normalised. All sizes of a request come from one forward pass.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.serve.http.errors import ApiError
from matryo.serve.http.request import Request, Response
from matryo.serve.http.schema import Field, Schema
from matryo.serve.http.wire import FORMATS, dumps, vectors_as
from matryo.serve.models import Encoded, Models, ServedModel, cut

if TYPE_CHECKING:
    from matryo.arrays import Array
    from matryo.serve.http.request import Headers
    from matryo.serve.limits import Limits

__all__ = ["EMBEDDINGS", "Embeddings", "decode_images"]

_STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_DIM = {"type": "integer", "minimum": 1}
EMBEDDINGS = Schema("Embeddings", (
    Field("input", {"anyOf": [{"type": "string"}, _STRINGS, _NUMBERS,
          {"type": "array", "items": _NUMBERS, "minItems": 1}]},
          "a text, or a list of texts; data URLs of images (data:image/png;base64,…) for a model that reads images; "
          "token ids with tokenizer", required=True),
    Field("model", {"type": "string"}, "a model of GET /v1/models", required=True),
    Field("dimensions", {"anyOf": [_DIM, {"type": "array", "items": _DIM, "minItems": 1}]},
          "the length of the vectors, by default the full dim; a list returns several from one forward pass"),
    Field("encoding_format", {"type": "string", "enum": list(FORMATS)},
          "float (the default); base64 of little-endian float32; int8: base64 of codes, times scale; "
          "binary: base64 of one bit per dimension"),
    Field("user", {"type": "string"}, "accepted for OpenAI's clients, and not stored"),
    Field("input_type", {"type": "string", "enum": ["query", "document"]},
          "selects the prompt of a model that has prompts for queries and documents"),
    Field("truncate", {"type": "boolean"}, "false refuses texts that are longer than the model reads [true]"),
    Field("tokenizer", {"type": "string"}, "the tokenizer of the model in GET /v1/models, to send token ids"),
))  # fmt: skip

_LARGE = 65_536   # numbers; larger answers are built in another thread


class Embeddings:
    """The endpoints of models."""

    def __init__(self, models: Models, limits: Limits) -> None:
        self.models, self.limits = models, limits

    async def create(self, request: Request) -> Response:
        """Embed the inputs."""
        fields = EMBEDDINGS.check(await request.json())
        model = self.models.find(fields["model"])
        dims, form = _dims(fields.get("dimensions"), model), fields.get("encoding_format", "float")
        encoded = await self._encode(model, fields)
        request.facts.update(model=model.name, items=len(encoded.vectors), tokens=encoded.tokens)
        several = isinstance(fields.get("dimensions"), list)

        def answer() -> bytes:
            return dumps(_answer(encoded, dims, form, model.name, several=several))

        large = len(encoded.vectors) * sum(dims) > _LARGE
        return Response(await asyncio.to_thread(answer) if large else answer(), headers=_notes(encoded, dims, model))

    async def list(self, request: Request) -> Response:   # noqa: ARG002
        """The models with their dims."""
        return Response.json({"object": "list", "data": [_about(model) for model in self.models]})

    async def get(self, request: Request) -> Response:
        """One model."""
        return Response.json(_about(self.models.find(request.name)))

    async def _encode(self, model: ServedModel, fields: dict[str, Any]) -> Encoded:
        given = fields["input"]
        inputs = [given] if isinstance(given, str) else given
        if isinstance(inputs[0], int):
            inputs = [inputs]
        if len(inputs) > self.limits.items:
            message = f"input must be at most {self.limits.items:,} items (got {len(inputs):,}): send fewer at a time"
            raise ApiError(400, message, param="input", code="too_many_inputs")
        if isinstance(inputs[0], list):
            return await model.encode_ids(_token_ids(inputs, model, fields.get("tokenizer")))
        if fields.get("tokenizer") is not None:
            raise ApiError(400, "tokenizer is for token ids: drop it to send texts", param="tokenizer")
        if not all(isinstance(item, str) for item in inputs):
            raise ApiError(400, "input must be a text, or a list of texts", param="input")
        if "" in inputs:
            message = f"input must not be empty (got an empty text at position {inputs.index('')})"
            raise ApiError(400, message, param="input", code="empty_input")
        if model.facts.images and all(item.startswith("data:") for item in inputs):
            return await model.encode_images(await decode_images(inputs, self.limits.images, "input"))
        if not model.facts.texts:
            message = "this model reads images: send data URLs (data:image/png;base64,…)"
            raise ApiError(400, message, param="input", code="not_an_image")
        if not model.facts.images and any(item.startswith("data:image/") for item in inputs):
            raise ApiError(400, "this model reads texts, not images", param="input", code="not_a_text")
        return await model.encode_texts(inputs, fields.get("input_type"), truncate=fields.get("truncate", True))


async def decode_images(urls: list[str], most: int, param: str) -> list[Array]:
    """The images of data URLs as uint8 [height, width, 3]; no other URL is ever fetched."""
    if len(urls) > most:
        raise ApiError(400, f"{param} must be at most {most} images (got {len(urls)}): send fewer", param=param)
    return await asyncio.to_thread(lambda: [_image(url, number, param) for number, url in enumerate(urls)])


def _image(url: str, number: int, param: str) -> Array:
    from matryo.data.images.decode import decode

    head, _, content = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        message = f"{param} {number} must be an image as data:image/png;base64,… (other URLs are not fetched)"
        raise ApiError(400, message, param=param, code="not_an_image")
    try:
        data = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{param} {number} is not base64", param=param, code="not_an_image") from None
    try:
        return decode(data, f"image {number}")
    except InputError as error:
        raise ApiError(400, str(error), param=param, code="not_an_image") from None


def _token_ids(inputs: list[Any], model: ServedModel, tokenizer: str | None) -> list[Array]:
    facts = model.facts
    if not facts.texts:
        raise ApiError(400, "this model reads images, not token ids", param="input")
    if tokenizer != facts.tokenizer:
        message = "token ids depend on the tokenizer: send texts (langchain: check_embedding_ctx_length=False), or "
        message += f"ids of this model's tokenizer, special tokens included, with tokenizer={facts.tokenizer!r}"
        raise ApiError(400, message, param="input", code="token_ids")
    assert model.encoder.tokenizer is not None
    most, arrays = model.encoder.tokenizer.vocabulary, []
    for number, ids in enumerate(inputs):
        valid = isinstance(ids, list) and ids and all(type(id) is int and 0 <= id < most for id in ids)
        if not valid or len(ids) > facts.length:
            rule = f"input {number} must be 1 to {facts.length:,} token ids from 0 to {most - 1:,}"
            raise ApiError(400, rule, param="input", code="token_ids")
        arrays.append(np.array(ids, np.int32))
    return arrays


def _dims(given: Any, model: ServedModel) -> list[int]:
    dims = [model.facts.dim] if given is None else given if isinstance(given, list) else [given]
    for dim in dims:
        if not 1 <= dim <= model.facts.dim:
            message = f"dimensions must be from 1 to {model.facts.dim} (got {dim}); trained: {_trained(model)}"
            raise ApiError(400, message, param="dimensions", code="invalid_dimensions")
    return list(dict.fromkeys(dims))


def _trained(model: ServedModel) -> str:
    return ", ".join(map(str, model.facts.dims))


def _notes(encoded: Encoded, dims: list[int], model: ServedModel) -> Headers:
    """Headers that say where the answer is less than a client may expect."""
    notes: Headers = []
    between = [str(dim) for dim in dims if dim not in model.facts.dims]
    if between:
        notes.append((b"x-matryo-untrained-dims", f"{', '.join(between)}; trained: {_trained(model)}".encode()))
    if encoded.truncated:
        notes.append((b"x-matryo-truncated-inputs", str(encoded.truncated).encode()))
    return notes


def _answer(encoded: Encoded, dims: list[int], form: str, name: str, *, several: bool) -> dict[str, Any]:
    columns = {dim: vectors_as(form, cut(encoded.vectors, dim)) for dim in dims}
    data: list[dict[str, Any]] = []
    for row in range(len(encoded.vectors)):
        entry = {"object": "embedding", "index": row}
        own = {"embeddings": {str(dim): columns[dim][row] for dim in dims}} if several else columns[dims[0]][row]
        data.append({**entry, **own})
    usage = {"prompt_tokens": encoded.tokens, "total_tokens": encoded.tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


def _about(model: ServedModel) -> dict[str, Any]:
    facts = model.facts
    reads = ["texts"] * facts.texts + ["images"] * facts.images
    return {
        "id": model.name, "object": "model", "created": model.created, "owned_by": "matryo",
        "dims": list(facts.dims), "dimensions": facts.dim, "pooling": facts.pooling or None,
        "max_length": facts.length or None, "reads": reads, "prompts": sorted(facts.prompts),
        "tokenizer": facts.tokenizer or None, "by_dim": list(facts.table),
    }  # fmt: skip
