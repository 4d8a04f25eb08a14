"""The boundary of the API: what is converted, what is refused in one line, and that the fuzz table misses no name."""

import sys
from pathlib import Path

import numpy as np
import pytest

from matryo import Cascade, Index, truncate
from matryo.arguments import as_integer, as_number, as_path, checked
from matryo.errors import DataError, InputError, MatryoError, NestingError, shown
from matryo.nesting import prefix_norms

sys.path.insert(0, str(Path(__file__).parent))


@checked
def take(count: int, share: float = 0.5, flag: bool = True, name: "str | None" = None, *, seed: int = 0) -> tuple:
    return count, share, flag, name, seed


def test_plain_values_and_numpy_scalars_pass_as_plain_values():
    assert take(3, 1, np.False_, "a") == (3, 1, False, "a", 0)
    got = take(np.int8(3), np.float32(0.5), seed=np.uint64(7))
    assert got == (3, 0.5, True, None, 7)
    assert [type(value) for value in got[:2]] == [int, float]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"count": 2.0}, "count must be an integer"),
        ({"count": True}, "count must be an integer"),
        ({"count": 10**30}, "count must be an integer"),
        ({"count": "3"}, "count must be an integer"),
        ({"count": 1, "share": "x"}, "share must be a number"),
        ({"count": 1, "share": 1j}, "share must be a number"),
        ({"count": 1, "flag": "yes"}, "flag must be True or False"),
        ({"count": 1, "name": "\ud800"}, "name must be valid text or None"),
        ({"count": 1, "seed": -1}, "seed must be an integer of at least 0"),
    ],
)
def test_other_types_are_refused_with_the_name_of_the_argument(arguments, rule):
    with pytest.raises(InputError, match=rf"{rule} \(got .*see help\(take\)"):
        take(**arguments)


def test_ranges_and_paths():
    assert as_integer(np.int64(3), "k", 1, 3) == 3
    assert as_number(0, "share", 0, 1, cure="use 0.5") == 0
    for wrong in (0, 4, 2.5, None):
        with pytest.raises(InputError, match="k must be an integer from 1 to 3"):
            as_integer(wrong, "k", 1, 3)
    for wrong in (-0.1, float("nan"), "a"):
        with pytest.raises(InputError, match="share must be a number from 0 to 1"):
            as_number(wrong, "share", 0, 1, cure="use 0.5")
    for wrong in ("a\0b", "x" * 300, b"bytes", 3, None, "a/" * 3000):
        with pytest.raises(InputError, match="path must be a path"):
            as_path(wrong)
    assert as_path(Path("a")) == Path("a")


def test_an_error_is_one_line_whatever_is_passed():
    deep: list = []
    for _ in range(3000):
        deep = [deep]

    class Opaque:
        def __repr__(self):
            raise RuntimeError("no repr")

    for value in (Opaque(), deep, "two\nlines", np.zeros((100, 100)), {1: "a\nb"}):
        with pytest.raises(MatryoError) as caught:
            take(value)
        assert len(str(caught.value).splitlines()) == 1
    assert shown(Opaque()) == "an object of type Opaque"


def test_queries_of_any_kind_are_searched_or_refused(tmp_path):
    rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    with Index.create(tmp_path / "index", nesting=[2, 4]) as index:
        index.add(rows)
        expected = index.search(rows[:3], k=2).ids.tolist()
        for same in (rows[:3].astype(">f4"), np.asfortranarray(rows[:3]), rows[:3].tolist()):
            assert index.search(same, k=2).ids.tolist() == expected
        for wrong in ([[1, 2], [3]], rows[:3] + 1j, [*rows[:3].tolist(), None], {1, 2}, object(), None, 3):
            with pytest.raises(InputError):
                index.search(wrong, k=2)
        assert len(index) == 20


def test_tensors_numpy_cannot_represent_are_converted(tmp_path):
    torch = pytest.importorskip("torch")
    rows = torch.arange(32.0).reshape(4, 8)
    with Index.create(tmp_path / "index", nesting=[8]) as index:
        index.add(rows.bfloat16().requires_grad_())
        assert index.search(rows.bfloat16().requires_grad_(), k=1, exact=True).ids.shape == (4, 1)
    with pytest.raises(NestingError, match="real numbers"):
        truncate(rows.to(torch.complex64), 4)


def test_the_fuzzed_table_covers_every_public_name():
    from attacks import api_table

    folder = Path(api_table.__file__)
    source = "".join(path.read_text(encoding="utf-8") for path in folder.parent.glob("api_t*.py"))
    records = {f"{room}.{name}" for room, names in api_table.RECORDS.items() for name in names.split()}
    loops = {name for name in api_table.public_names() if f'"{name.partition(".")[2]}"' in source}
    missing = {name for name in api_table.public_names() - records - loops if f'"{name}' not in source}
    assert not missing, "add them to the table in api_table.py or api_torch.py"


def test_sparse_and_float8_tensors_are_refused():
    torch = pytest.importorskip("torch")
    from matryo.losses import cross_entropy_by_dim, distil_by_dim, nested, prefix_logits

    dense, target = torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)
    refused = "must be a dense Tensor, not float8"
    for z in (dense.to_sparse(), dense.to(torch.float8_e4m3fn)):
        with pytest.raises(InputError, match=refused):
            prefix_logits(z, dense, [4, 8])
        with pytest.raises(InputError, match=refused):
            distil_by_dim(z, dense, [4, 8])
        with pytest.raises(InputError, match=r"embeddings must be dense tensors .* not float8"):
            nested(torch.nn.functional.mse_loss, [4, 8], normalize=True, embeddings=2)(dense, z)
    with pytest.raises(InputError, match=f"class_weight {refused}"):
        cross_entropy_by_dim(torch.ones(2, 4, 8), target, class_weight=torch.ones(8).to_sparse())
    with pytest.raises(InputError, match="must be floating-point numbers"):
        prefix_logits(dense.bool(), dense, [4, 8])
    with pytest.raises(InputError, match="one device"):
        prefix_logits(dense.to("meta"), dense, [4, 8])
    with pytest.raises(NestingError, match="vectors must be dense"):
        truncate(dense.to_sparse(), 2)
    with pytest.raises(NestingError, match="vectors must be dense"):
        prefix_norms(dense.to_sparse(), [2])


def test_parameters_of_a_cascade_are_compared_as_python_numbers():
    logits = {dim: np.random.default_rng(dim).normal(size=(50, 3)) for dim in (2, 4)}
    for least in (np.float16(1e-9), np.zeros((), ">f2")):   # 1e-9, the least that is allowed, is 0 in float16
        with pytest.raises(InputError, match="max_loss at least 1e-09"):
            Cascade(strategy="risk", max_loss=least).fit(logits, np.arange(50) % 3)


def test_targets_are_checked_before_torch_does():
    torch = pytest.importorskip("torch")
    from matryo.losses import cross_entropy_by_dim

    logits, target = torch.randn(2, 4, 8), torch.tensor([0, 1, 7, -100])
    for changed, message in [
        ({"target": torch.tensor([0, 1, 2, 10**12])}, r"targets must be between 0 and 7 \(got 1000000000000\)"),
        ({"label_smoothing": np.inf}, r"label_smoothing must be between 0 and 1 \(got inf\)"),
        ({"class_weight": torch.ones(3)}, r"class_weight must have one value per class \(8 classes\)"),
    ]:
        with pytest.raises(InputError, match=message):
            cross_entropy_by_dim(**{"logits": logits, "target": target} | changed)
    weight = torch.rand(8, dtype=torch.float64)
    expected = torch.stack([torch.nn.functional.cross_entropy(part, target, weight.float()) for part in logits])
    torch.testing.assert_close(cross_entropy_by_dim(logits, target.int(), class_weight=weight), expected)


def test_numbers_at_the_end_of_their_range_are_refused_or_used():
    from matryo.retrieve import Stage
    from matryo.retrieve.vectors.queries import as_queries

    with pytest.raises(InputError, match="dim must be an integer of at least 1"):
        Stage(np.timedelta64(3, "s"), 1)
    cascade = Cascade([2, 4], strategy="risk", max_loss=5e-324)
    with pytest.raises(InputError, match="max_loss at least 1e-09"):
        cascade.fit({2: np.eye(2), 4: np.eye(2)}, np.array([0, 1]))
    with pytest.raises(InputError, match="queries must be"):
        as_queries([[1.0, 2.0], [3.0]], 2)


def test_pairs_must_be_texts():
    from matryo.data import pair_dataset

    with pytest.raises(DataError, match=r"each text of item 0 must be a string \(got \['a'\]"):
        pair_dataset({"train": [[["a"], ["b"]]]})
