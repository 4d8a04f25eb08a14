"""A folded model gives the vectors that the map gives."""

import json

import numpy as np
import pytest

from matryo import Retrofit
from matryo.errors import InputError


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 16)) * np.geomspace(1, 0.1, 16) @ np.linalg.qr(rng.normal(size=(16, 16)))[0]
    return Retrofit.fit(rows, nesting=[4, 8, 16])


def around_a_mean(fitted):
    """The map of the rung with a mean, whether or not it was taken."""
    from dataclasses import replace

    from matryo.retrofit import rungs
    from matryo.retrofit.held_out import Rung

    centred = Rung("centred", rungs.leading(fitted.moments.covariance), fitted.moments.mean)
    return replace(fitted, rungs={"centred": centred}, rung="centred", table=())


def test_the_matrix_alone(fitted, tmp_path):
    fitted.fold_into(None, tmp_path / "axes.npy", dim=4)
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    np.testing.assert_allclose(x @ np.load(tmp_path / "axes.npy"), fitted.at(4).transform(x)[:, :4], atol=1e-6)
    with pytest.raises(InputError, match=r"axes.npy exists: choose another name"):
        fitted.fold_into(None, tmp_path / "axes.npy")
    with pytest.raises(InputError, match=r"this map subtracts a mean"):
        around_a_mean(fitted).fold_into(None, tmp_path / "other.npy")


@pytest.mark.parametrize("dim", [None, 8])
@pytest.mark.parametrize("centred", [False, True])
def test_onnx(fitted, tmp_path, dim, centred):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    fitted = around_a_mean(fitted) if centred else fitted
    fitted.fold_into(None, tmp_path / "map.onnx", dim=dim)
    fitted.fold_into(tmp_path / "map.onnx", tmp_path / "twice.onnx") if not centred and dim is None else None
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    (found,) = runtime.InferenceSession(tmp_path / "map.onnx").run(None, {"vectors": x})
    mapped = fitted.at(dim) if dim and fitted.table else fitted
    np.testing.assert_allclose(found, mapped.transform(x, dim), atol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_a_dense_module_is_appended(fitted, tmp_path, centred):
    from safetensors.numpy import load_file

    mapped, dim = (around_a_mean(fitted), None) if centred else (fitted, 8)
    model = tmp_path / "model"
    model.mkdir()
    first = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (model / "modules.json").write_text(json.dumps([first]))
    (model / "weights.bin").write_bytes(b"kept")
    mapped.fold_into(model, tmp_path / "out", dim=dim)
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    assert kinds == ["Transformer", *(["Normalize"] if centred else []), "Dense", "Normalize"]
    assert (tmp_path / "out" / "weights.bin").read_bytes() == b"kept"
    folder = tmp_path / "out" / next(module["path"] for module in modules if module["type"].endswith("Dense"))
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    assert config["in_features"] == 16 and config["out_features"] == (dim or 16) and config["bias"] == centred
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = unit @ tensors["linear.weight"].T + tensors.get("linear.bias", 0)
    wanted = (mapped.at(dim) if dim else mapped).transform(x, dim)
    found, wanted = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (found, wanted))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_what_is_no_model(fitted, tmp_path):
    with pytest.raises(InputError, match=r"model must be a saved sentence-transformers folder"):
        fitted.fold_into(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
