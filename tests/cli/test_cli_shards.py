"""`matryo index --shards` from the command line: create, search, plan, change, describe and verify."""

import json

import numpy as np

from matryo.cli import main
from matryo.retrieve import Index
from matryo.retrieve.shards import ShardedIndex, open_index


def matryo(capsys, *words):
    main([str(word) for word in words])
    return capsys.readouterr().out


def test_a_sharded_index_is_used_like_any_other(tmp_path, capsys):
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(600, 16)).astype(np.float32), rng.normal(size=(4, 16)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    np.save(tmp_path / "q.npy", queries)
    one, many = tmp_path / "one", tmp_path / "many"
    matryo(capsys, "index", one, tmp_path / "v.npy", "--quiet")
    out = matryo(capsys, "index", many, tmp_path / "v.npy", "--shards", 3, "--sketch", "--quiet")
    assert "600 vectors in 3 shards" in out
    found = matryo(capsys, "search", many, tmp_path / "q.npy", "--json")
    assert found == matryo(capsys, "search", one, tmp_path / "q.npy", "--json")
    assert matryo(capsys, "search", many, "--like", 5, 7) == matryo(capsys, "search", one, "--like", 5, 7)
    matryo(capsys, "plan", many, "--recall", 0.9, "--cost", "bytes", "--out", tmp_path / "plan.json", "--quiet")
    assert "query 0" in matryo(capsys, "search", many, tmp_path / "q.npy", "--plan", tmp_path / "plan.json")
    matryo(capsys, "index", many, "--delete", 5, "--verify", "--backup", tmp_path / "copy")
    with open_index(tmp_path / "copy") as copy:
        assert isinstance(copy, ShardedIndex) and len(copy) == 599 and 5 not in copy
    assert json.loads(matryo(capsys, "info", many, "--json"))["shards"] == 3
    assert "all checksums match" in matryo(capsys, "verify", many)
    for folder, shards, match in ((one, 3, "created without --shards"), (many, 4, "created with --shards 3")):
        main(["index", str(folder), str(tmp_path / "v.npy"), "--again", "--shards", str(shards)])
        assert match in capsys.readouterr().err
    assert Index.exists(one) and not Index.exists(many)
