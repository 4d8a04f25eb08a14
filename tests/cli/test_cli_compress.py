"""`matryo compress`, as a user runs it."""

import json

import numpy as np
import pytest

from matryo import Compression, Retrofit
from matryo.cli import main


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("vectors")
    turn = np.linalg.qr(rng.normal(size=(32, 32)))[0]
    vectors = (rng.normal(size=(900, 32)) * np.geomspace(1, 0.05, 32) @ turn).astype(np.float32)
    np.save(folder / "v.npy", vectors)
    lines = [json.dumps({"id": f"a\t{row}", "vector": vector.tolist()}) for row, vector in enumerate(vectors)]
    (folder / "v.jsonl").write_text("\n".join(lines))
    broken = vectors.copy()
    broken[:, 4] = 1
    np.save(folder / "constant.npy", broken)
    return folder


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_choose_and_write(source, tmp_path, capsys):
    code, out, err = run(capsys, "compress", source / "v.npy", "--bytes", 8, "--out", tmp_path / "c", "--to", "numpy",
                         "--kinds", "bit,product")  # fmt: skip
    assert code == 0, err
    assert "8 bytes per vector instead of 128, 16.0 × smaller" in out and "taken: centred product" in out
    compression, codes = Compression.load(tmp_path / "c"), np.load(tmp_path / "c" / "codes.npy")
    vectors = np.load(source / "v.npy")
    np.testing.assert_array_equal(codes, compression.encode(vectors))
    np.testing.assert_array_equal(np.load(tmp_path / "c" / "numpy.npy"), compression.decode(codes))
    assert run(capsys, "compress", source / "v.npy", "--bits", 4, "--dim", 8, "--out", tmp_path / "c")[0] == 0
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "codes.npy", "compression.json", "compression.safetensors", "matryo.json"]  # fmt: skip
    assert np.load(tmp_path / "c" / "codes.npy").shape == (900, 4)


def test_exports_have_the_ids(source, tmp_path, capsys):
    code, out, _ = run(capsys, "compress", source / "v.jsonl", "--bytes", 4, "--to", "bit", "--out", tmp_path / "c",
                       "--json")  # fmt: skip
    assert code == 0 and json.loads(out)["code"] == "bit"
    lines = (tmp_path / "c" / "bit.tsv").read_text().splitlines()
    compression = Compression.load(tmp_path / "c")
    signs = compression.transform(np.load(source / "v.npy")) >= 0
    assert lines[3] == "a\\t3\t" + "".join("01"[int(bit)] for bit in signs[3])
    assert json.loads((tmp_path / "c" / "ids.json").read_text())[3] == "a\t3"
    assert run(capsys, "compress", source / "v.npy", "--bytes", 8, "--to", "int8", "--out", tmp_path / "i")[0] == 0
    eights, other = np.load(tmp_path / "i" / "int8.npy"), Compression.load(tmp_path / "i")
    close = other.transform(np.load(source / "v.npy"))
    assert eights.dtype == np.int8 and np.corrcoef(eights.ravel(), close.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(("words", "message"), [
    (["v.npy", "--to", "bit"], "--to writes to a folder (got no --out): add --out DIR"),
    (["v.npy", "--dim", "8"], "--dim applies to --bits (got no --bits): add --bits 4"),
    (["v.npy", "--kinds", "int8", "--to", "bit", "--out", "c"], "--to bit needs --kinds bit (got int8): drop --kinds"),
    (["v.npy", "--bits", "4", "--to", "int8", "--out", "c"], "--to int8 needs codes of int8 (got --bits 4)"),
    (["v.npy", "--bytes", "0", "--out", "c"], "bytes_per_vector must be an integer from 1"),
    (["constant.npy", "--out", "c"], "every column must vary (got 1 columns with one value, the first is column 4)"),
    (["v.npy", "--rotation", "map", "--out", "c"], "the map must be fitted on vectors with 32 columns (got 16)"),
    (["-", "--out", "c"], "--out reads SOURCE twice (got standard input): write standard input to a file first"),
])  # fmt: skip
def test_bad_options_are_one_line_and_write_nothing(source, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    if "map" in words:
        Retrofit.fit(np.random.default_rng(0).normal(size=(300, 16)), progress=False).save("map")
    before = sorted(tmp_path.rglob("*"))
    place = words[0] if words[0] == "-" else source / words[0]
    code, out, err = run(capsys, "compress", place, *words[1:])
    assert code == 1 and message in err and err.count("\n") == 1 and not out
    assert sorted(tmp_path.rglob("*")) == before


def test_an_index_of_codes(source, tmp_path, capsys):
    code, out, err = run(capsys, "index", tmp_path / "i", source / "v.npy", "--bytes", 8)
    assert code == 0, err
    assert "no full vectors: product codes of 8 bytes" in out and "on 200 queries and all 900" in out
    assert "matryo plan" not in out
    code, out, err = run(capsys, "search", tmp_path / "i", source / "v.npy", "-k", 1, "--json")
    assert code == 0 and json.loads(out.splitlines()[5])["hits"][0]["id"] == 5, err
    assert run(capsys, "index", tmp_path / "i", source / "v.jsonl", "--bytes", 8)[0] == 1   # ids are integers
    code, _, err = run(capsys, "index", tmp_path / "i", source / "v.npy", "--bytes", 4, "--again")
    assert code == 1 and "stores codes of 8 bytes, which cannot change (got 4)" in err
    run(capsys, "compress", source / "v.npy", "--bytes", 8, "--out", tmp_path / "c", "--kinds", "product")
    code, out, err = run(capsys, "index", tmp_path / "j", source / "v.jsonl", "--codes", tmp_path / "c", "--json")
    assert code == 0 and json.loads(out)["count"] == 900, err


def test_vectors_that_no_code_suits_leave_no_index(source, tmp_path, capsys):
    code, _, err = run(capsys, "index", tmp_path / "i", source / "constant.npy", "--bytes", 8)
    assert code == 1 and "the first is column 4): drop those columns" in err and not (tmp_path / "i").exists()


@pytest.mark.parametrize(("words", "message"), [
    (["--bytes", "8", "--dims", "8,32"], "which --dims needs (got --bytes and --dims): drop --dims"),
    (["--bytes", "8", "--sketch"], "drop --sketch"),
    (["--bytes", "8", "--codes", "c"], "drop one"),
    (["--codes", "missing"], "must be a matryo.Compression"),
    (["--bytes", "0"], "bytes_per_vector must be"),
])  # fmt: skip
def test_bad_options_of_an_index_of_codes_write_nothing(source, tmp_path, capsys, words, message):
    code, _, err = run(capsys, "index", tmp_path / "i", source / "v.npy", *words)
    assert code == 1 and message in err and err.count("\n") == 1 and not (tmp_path / "i").exists()
