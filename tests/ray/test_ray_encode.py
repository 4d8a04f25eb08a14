"""Encode on a cluster: byte for byte the folder of one process, whatever is killed."""

import filecmp
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from matryo import EmbeddingSet
from matryo.cli import main
from matryo.errors import EmbeddingsError, InputError
from matryo.ray import Data, Parts, encode, gather

pytest_plugins = ["ray_cluster"]
torch = pytest.importorskip("torch")
pytest.importorskip("ray._raylet")   # a folder is no Ray


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A tiny trained model of bundled images, and its embeddings by one process."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    torch.set_num_threads(1)
    small = ["--data.size=8", "--encoder.dim=16", "--head.dims=8,16", "--loop.epochs=1", "--data.test=flat"]
    assert not main(["train", "demo", "--out", str(folder), *small, "--quiet"])
    assert not main(["encode", str(folder), "--device", "cpu", "--quiet"])
    return folder


def same(one: Path, other: Path) -> bool:
    names = sorted(file.name for file in one.iterdir())
    return names == sorted(file.name for file in other.iterdir()) and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in names)   # fmt: skip


@pytest.mark.usefixtures("cluster")
def test_it_equals_one_process_byte_for_byte(run_folder, bucket, tmp_path, capsys):
    assert not main(["encode", str(run_folder), "--ray", "local", "--out", str(tmp_path / "out"), "--quiet"])
    for split in (run_folder / "embeddings").iterdir():
        assert same(split, tmp_path / "out" / split.name), split.name
        assert not (tmp_path / "out" / f"{split.name}.parts").exists()
    assert not main(["encode", str(run_folder), "--ray", "local", "--out", f"{bucket}/encoded", "--split", "flat"])
    assert "parts" in capsys.readouterr().out
    gathered = gather(Parts.open(f"{bucket}/encoded/flat"), tmp_path / "gathered", progress=False)
    assert same(run_folder / "embeddings" / "flat", gathered.path)
    assert main(["encode", str(run_folder), "--ray", "local", "--device", "cuda"]) != 0
    assert "workers choose their device" in capsys.readouterr().err


def data_of(split):
    return Data((), "emoji", "", split)


def test_parts_of_another_job_are_refused_and_damaged_ones_made_again(run_folder, cluster, tmp_path):
    data, out = data_of("flat"), tmp_path / "parts"
    parts = encode(run_folder, data, out, cluster=cluster, keep_parts=True, batch=64, part_rows=64, progress=False)
    whole = np.asarray(parts.read(0, parts.count))
    with pytest.raises(EmbeddingsError, match="parts of another job"):
        encode(run_folder, data, out, cluster=cluster, keep_parts=True, batch=32, progress=False)
    with pytest.raises(InputError, match="multiple of the batch"):
        encode(run_folder, data, out, cluster=cluster, batch=64, part_rows=65, progress=False)
    (out / "part-000001.json").write_text("{}")   # a record that was not finished
    stamps = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*.npy")}
    encode(run_folder, data, out, cluster=cluster, keep_parts=True, batch=64, part_rows=64, progress=False,
           overwrite=False)   # fmt: skip
    changed = {file.name for file in out.glob("part-*.npy") if file.stat().st_mtime_ns != stamps[file.name]}
    assert changed == {name for name in stamps if name.startswith("part-000001")}
    np.testing.assert_array_equal(whole, Parts.open(out).read(0, parts.count))


DRIVER = """
import sys
from matryo.ray import Cluster, Data, encode
run, out = sys.argv[1:]
with Cluster("local", workers=1) as cluster:
    encode(run, Data((), "emoji", "", "train"), out, cluster=cluster, batch=32, part_rows=32, progress=False)
"""


def test_a_killed_driver_resumes_with_what_was_acknowledged(run_folder, cluster, tmp_path):
    out = tmp_path / "train"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(run_folder), str(out)], start_new_session=True)
    parts = tmp_path / "train.parts"
    deadline = time.monotonic() + 120
    while len(list(parts.glob("part-*.json"))) < 3 and time.monotonic() < deadline and driver.poll() is None:
        time.sleep(0.05)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    records = {file.name: file.stat().st_mtime_ns for file in parts.glob("part-*.json")}
    assert len(records) >= 3 and not out.exists()
    time.sleep(1)   # orphaned workers end with their cluster
    encode(run_folder, data_of("train"), out, cluster=cluster, batch=32, part_rows=32, progress=False)
    one = EmbeddingSet.open(run_folder / "embeddings" / "train")
    np.testing.assert_allclose(EmbeddingSet.open(out).vectors, one.vectors, atol=1e-4)
    assert not parts.exists()
