"""Checkpoints: one safetensors file with everything needed to resume a run, replaced atomically.

If the process is killed at any moment, the file is either the previous checkpoint or the new one, complete. It holds
its own checksum, which is compared before a run is resumed.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from matryo.embeddings.manifest import FileRecord
from matryo.errors import RunError
from matryo.files import replacing
from matryo.training.run.seal import FACTS, UNSEALED, read_facts, sealed

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn
    from torch.optim.swa_utils import AveragedModel


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: AveragedModel | None,
    facts: dict[str, Any],
) -> None:
    """Store the model, optimiser, moving average and random state; ``facts`` is JSON (step, recipe, …)."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if average is not None:
        tensors |= {f"average.{name}": value for name, value in average.module.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items() if value is not None}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    with replacing(path) as file:
        file.writelines(sealed(_to_bytes(tensors, {FACTS: json.dumps(facts), **UNSEALED})))


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: AveragedModel | None
) -> dict[str, Any]:
    """Restore everything that :func:`save_checkpoint` stored; returns the facts. Call ``check_seal`` before."""
    facts = read_facts(path)
    tensors = load_weights(path)
    model.load_state_dict(_under(tensors, "model."))
    if average is not None:
        average.module.load_state_dict(_under(tensors, "average."))
        average.n_averaged.fill_(1 + facts.get("step", 0))   # one update per step, and the initial weights
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, value in _under(tensors, "optimizer.").items():
        index, key = name.split(".", 1)
        like = parameters[int(index)]
        if value.shape == like.shape:
            # Fused updates walk parameter and state side by side in memory, so both need the same layout.
            value = torch.empty_like(like, dtype=value.dtype).copy_(value)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    torch.set_rng_state(tensors["random.cpu"])
    if torch.cuda.is_available() and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return facts


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU."""
    with _open(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}   # noqa: SIM118 - no mapping


def save_weights(path: Path, tensors: dict[str, Tensor]) -> FileRecord:
    """Write the tensors of a model; returns the size and checksum of the file."""
    data = _to_bytes(tensors, {FACTS: "{}"})
    with replacing(path) as file:
        file.write(data)
    return FileRecord(len(data), hashlib.sha256(data).hexdigest())


def _to_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    # safetensors refuses tensors that share memory (tied or expanded ones): copy them.
    seen: set[int] = set()
    for name, value in plain.items():
        memory = value.untyped_storage().data_ptr()
        if memory in seen:
            plain[name] = value.clone()
        seen.add(memory)
    data: bytes = to_bytes(plain, metadata=metadata)
    return data


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise RunError(
            f"{path.name} cannot be read", got=error, cure="restore the file, or delete it to start over"
        ) from error


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
