"""Fold a map into what makes the vectors, so that it gives mapped vectors by itself.

==================================================  ===============================================================
``fold_into("folder", "out")``                      a saved sentence-transformers model, with a ``Dense`` module added
``fold_into("model.onnx", "out.onnx")``             a graph whose first output is multiplied by the matrix; needs onnx
``fold_into(None, "out.onnx")``                     a graph of the map alone: ``vectors`` → ``mapped``; needs onnx
``fold_into(None, "out.npy")``                      the matrix [d, dim] alone, for a map without a mean
==================================================  ===============================================================

With ``dim``, the outputs are the first columns of the map taken there, scaled to norm 1 again where the format can.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save as save_tensors

from matryo.errors import InputError, MissingExtra
from matryo.files import check_may_write, new_file, parse_json, replacing, write_json
from matryo.folders import replacing_folder

if TYPE_CHECKING:
    from matryo.arrays import Floats
    from matryo.retrofit.retrofit import Retrofit

_MODULES = "modules.json"
_PACKAGE = "sentence_transformers.models"


def fold(retrofit: Retrofit, model: str | Path | None, out: str | Path, dim: int | None) -> None:
    """Write ``out``, which must not exist yet."""
    target = Path(out)
    check_may_write(target)
    mapped = retrofit if dim is None or not any(entry.dim == dim for entry in retrofit.table) else retrofit.at(dim)
    if dim is not None and not 1 <= dim <= retrofit.dim:
        raise InputError(f"dim must be from 1 to {retrofit.dim}", got=dim, cure=f"use dim={retrofit.dim}")
    if not mapped.is_rotation:
        cure = "fit without adapt=True, or map the vectors with transform"
        raise InputError("only a rotation can be folded into a model", got=mapped.rung, cure=cure)
    weight, bias = _affine(mapped, dim)
    if model is None and target.suffix == ".npy":
        if bias is not None:
            cure = "use a rotation without a mean, or write .onnx"
            raise InputError("a .npy file holds a matrix, and this map subtracts a mean", got=mapped.rung, cure=cure)
        with replacing(target) as file:
            np.save(file, weight)
    elif target.suffix == ".onnx":
        cosine = retrofit.metric == "cosine"
        _write_onnx(model, target, weight, bias, before=cosine and bias is not None, after=cosine and dim is not None)
    elif model is not None and (Path(model) / _MODULES).is_file():
        _write_sentence(Path(model), target, weight, bias, unit=dim is not None or retrofit.metric == "cosine")
    else:
        raise InputError(
            "model must be a saved sentence-transformers folder or an .onnx file, or None",
            got=model,
            cure="with None, out must end in .npy or .onnx",
        )


def _affine(retrofit: Retrofit, dim: int | None) -> tuple[Floats, Floats | None]:
    """The matrix [d, dim] and the bias [dim] of the map."""
    weight = np.ascontiguousarray(retrofit.axes[:, :dim])
    return weight, None if retrofit.mean is None else -(retrofit.mean @ weight)


def _write_sentence(model: Path, out: Path, weight: Floats, bias: Floats | None, *, unit: bool) -> None:
    """Copy the folder and append the modules. A mean is that of unit vectors, so they are normalised before it."""
    modules: list[dict[str, Any]] = parse_json((model / _MODULES).read_bytes())
    if not isinstance(modules, list) or not modules:
        raise InputError(f"{model / _MODULES} must list modules", got=modules, cure="save the model again")
    if out.exists():
        raise InputError(f"{out} exists", cure="choose another folder")
    package = str(modules[-1].get("type", "")).rpartition(".")[0]
    package = package if package.startswith("sentence_transformers.") else _PACKAGE
    normalised = str(modules[-1].get("type", "")).endswith("Normalize")
    with replacing_folder(out) as work:
        shutil.copytree(model, work, dirs_exist_ok=True)
        added = [*([] if normalised or bias is None else ["Normalize"]), "Dense", *(["Normalize"] if unit else [])]
        for kind in added:
            number = len(modules)
            folder = work / f"{number}_{kind}"
            folder.mkdir()
            modules.append({"idx": number, "name": str(number), "path": folder.name, "type": _type(kind, package)})
            if kind == "Dense":
                _write_dense(folder, weight, bias)
        write_json(work / _MODULES, modules)


def _type(kind: str, package: str) -> str:
    return f"{package}.{kind}"


def _write_dense(folder: Path, weight: Floats, bias: Floats | None) -> None:
    write_json(folder / "config.json", {
        "in_features": weight.shape[0], "out_features": weight.shape[1], "bias": bias is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
    })  # fmt: skip
    tensors = {"linear.weight": np.ascontiguousarray(weight.T)} | ({} if bias is None else {"linear.bias": bias})
    with new_file(folder / "model.safetensors") as file:
        file.write(save_tensors(tensors))


def _write_onnx(
    model: str | Path | None, out: Path, weight: Floats, bias: Floats | None, *, before: bool, after: bool
) -> None:
    """``before`` and ``after`` the map, rows are scaled to norm 1: the mean of a cosine map is that of unit vectors."""
    with MissingExtra.unless_installed("onnx", "onnx"):
        import onnx
        from onnx import TensorProto, helper, numpy_helper

    names: tuple[str, ...] = ("matryo_axes", "matryo_bias", "matryo_turned", "matryo_moved", "mapped", "matryo_unit")
    if model is None:
        source = "vectors"
        graph = helper.make_graph(
            [], "retrofit", [helper.make_tensor_value_info(source, TensorProto.FLOAT, ["rows", weight.shape[0]])], []
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    else:
        proto = onnx.load(str(model))
        source = proto.graph.output[0].name
        del proto.graph.output[0]
    taken = {tensor.name for tensor in proto.graph.initializer} | {o for node in proto.graph.node for o in node.output}
    while taken & set(names):   # a graph that was folded before
        names = tuple(f"{name}_" for name in names)
    axes, moved_by, turned, moved, final, first = names
    nodes = [helper.make_node("LpNormalization", [source], [first], axis=-1, p=2)] if before else []
    nodes.append(helper.make_node("MatMul", [first if before else source, axes], [turned]))
    proto.graph.initializer.append(numpy_helper.from_array(weight, axes))
    if bias is not None:
        proto.graph.initializer.append(numpy_helper.from_array(bias.astype(np.float32), moved_by))
        nodes.append(helper.make_node("Add", [turned, moved_by], [moved]))
    last = nodes[-1].output[0]
    nodes.append(helper.make_node("LpNormalization", [last], [final], axis=-1, p=2) if after
                 else helper.make_node("Identity", [last], [final]))  # fmt: skip
    proto.graph.node.extend(nodes)
    result = helper.make_tensor_value_info(final, TensorProto.FLOAT, ["rows", weight.shape[1]])
    proto.graph.output.insert(0, result)
    onnx.checker.check_model(proto)
    with replacing(out) as file:
        file.write(proto.SerializeToString())
