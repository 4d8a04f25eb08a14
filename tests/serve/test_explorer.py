"""The endpoints of the explorer: every number against a naive one, fields and pictures of payloads, and hosts."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest

from conftest import call
from matryo import Index
from matryo.errors import InputError
from matryo.serve import Show, app
from matryo.serve.explorer import files
from matryo.serve.explorer.show import Shown
from matryo.serve.explorer.thumbnails import thumbnail

ONE = "/v1/indexes/idx"
DIMS = (4, 8, 16)
PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def kinds():
    return np.random.default_rng(1).integers(0, 3, 500)


@pytest.fixture(scope="module")
def vectors(kinds):
    """Three clusters, told by the first columns."""
    draw = np.random.default_rng(0)
    columns = draw.normal(size=(500, 16)) * np.linspace(1, 0.3, 16)
    columns[:, :3] += 3 * np.eye(3)[kinds]
    return columns.astype(np.float32)


@pytest.fixture(scope="module")
def service(tmp_path_factory, vectors, kinds):
    folder = tmp_path_factory.mktemp("explored") / "idx"
    with Index.create(folder, nesting=DIMS) as index:
        payload = [{"name": f"row {n % 7} of kind {kind}", "kind": f"kind {kind}", "picture": PNG}
                   for n, kind in enumerate(kinds)]  # fmt: skip
        index.add(vectors, ids=[f"r{n}" for n in range(500)], payload=payload)
    one = app(index=folder)
    yield one
    one.close()


def ranked(vectors, row, dim):
    """Ids by cosine of prefixes, nearest first, without the row itself."""
    prefixes = vectors[:, :dim].astype(np.float64)
    prefixes /= np.linalg.norm(prefixes, axis=1, keepdims=True)
    order = np.argsort(-(prefixes @ prefixes[row]), kind="stable")
    return [f"r{n}" for n in order if n != row]


def test_one_request_searches_every_dim(service, vectors):
    answer = call(service, "POST", f"{ONE}/compare", {"id": "r5", "k": 6}).json
    assert answer["query"] == "r5"
    assert [result["dim"] for result in answer["results"]] == list(DIMS)
    for result in answer["results"]:
        assert [hit["id"] for hit in result["hits"]] == ranked(vectors, 5, result["dim"])[:6]
    shown = {item["id"]: item for item in answer["items"]}
    assert set(shown) == {"r5"} | {hit["id"] for result in answer["results"] for hit in result["hits"]}
    assert shown["r5"]["image"] == PNG
    plan = {"stages": [{"dim": 4, "keep": 500}, {"dim": 16, "keep": 6}]}   # nothing is lost on the way
    answer = call(service, "POST", f"{ONE}/compare", {"vector": vectors[5].tolist(), "k": 6, "plan": plan}).json
    assert [hit["id"] for hit in answer["plan"]] == ["r5", *ranked(vectors, 5, 16)[:5]]
    assert answer["query"] is None


def test_words_find_rows_and_the_best_one_is_the_query(service, kinds):
    answer = call(service, "POST", f"{ONE}/compare", {"words": "KIND 2 Row 3", "dims": [8]}).json
    wanted = next(n for n, kind in enumerate(kinds) if kind == 2 and n % 7 == 3)
    assert answer["query"] == answer["matches"][0] == f"r{wanted}"
    titles = {item["id"]: item["title"] for item in answer["items"]}
    assert {titles[id] for id in answer["matches"]} == {"row 3 of kind 2"}
    assert call(service, "POST", f"{ONE}/compare", {"words": "zebra"}).json["results"] == []


def test_recall_and_cost_of_each_dim_are_those_of_plain_loops(service, vectors, kinds):
    answer = call(service, "GET", f"{ONE}/dims").json
    index = next(iter(service.indexes)).reader
    sample = [int(id[1:]) for id in index.sample(200, 0)[0]]
    titles = [f"row {n % 7} of kind {kind}" for n, kind in enumerate(kinds)]
    best = {row: ranked(vectors, row, 16)[:10] for row in sample}
    for measured, dim in zip(answer["dims"], DIMS, strict=True):
        found = {row: ranked(vectors, row, dim)[:10] for row in sample}
        recall = np.mean([len({*found[row]} & {*best[row]}) / 10 for row in sample])
        assert measured["recall"] == pytest.approx(recall)
        assert (measured["bytes"], measured["mflops"]) == (4 * dim, pytest.approx(500 * dim / 1e6))
        same = np.mean([kinds[row] == kinds[int(found[row][0][1:])] for row in sample])
        if answer["same"] == "kind":
            assert measured["same"] == pytest.approx(same)
    names = np.mean([titles[row] == titles[int(best[row][0][1:])] for row in sample])
    assert answer["same"] == ("name" if names >= 0.2 else "kind")


def test_the_map_is_the_plane_of_the_principal_components(service, vectors, kinds):
    for dim in DIMS:
        answer = call(service, "POST", f"{ONE}/map", {"dim": dim, "ids": ["r7", "gone"]}).json
        rows = [int(id[1:]) for id in answer["ids"]]
        prefixes = vectors[rows, :dim].astype(np.float64)
        prefixes /= np.linalg.norm(prefixes, axis=1, keepdims=True)
        left, sizes, _ = np.linalg.svd(prefixes - prefixes.mean(0), full_matrices=False)
        assert answer["share"] == pytest.approx((sizes[:2] ** 2).sum() / (sizes**2).sum())
        plane, places = left[:, :2] * sizes[:2], np.array([answer["x"], answer["y"]]).T
        assert np.abs(places).max() == pytest.approx(1, abs=1e-3)
        expected, got = (np.linalg.norm(points[:, None] - points, axis=2) for points in (plane, places))
        assert np.allclose(expected / expected.max(), got / got.max(), atol=2e-4)   # turned and scaled alike
        assert [answer["classes"][own] for own in answer["class"]] == [f"kind {kinds[row]}" for row in rows]
        (mark,) = answer["marks"]
        assert (mark["x"], mark["y"]) == (answer["x"][rows.index(7)], answer["y"][rows.index(7)])
    full = np.array([answer["x"], answer["y"]])
    short = call(service, "POST", f"{ONE}/map", {"dim": 8}).json
    turned = np.array([short["x"], short["y"]])
    assert np.trace(turned @ full.T) > np.trace(turned[::-1] @ full.T)   # not mirrored: rows stay near their places


def test_the_frontier_is_there_once_a_plan_was_made(service):
    assert call(service, "GET", f"{ONE}/frontier").json["choice"] is None
    next(iter(service.indexes))._plans.clear()
    made = call(service, "POST", f"{ONE}/plan", {}).json
    again = call(service, "GET", f"{ONE}/frontier").json["choice"]
    assert again["frontier"] == made["frontier"]
    answer = call(service, "POST", f"{ONE}/compare", {"id": "r0", "plan": again["frontier"][0]["plan"]}).json
    assert answer["plan"] == answer["results"][-1]["hits"]   # the first point is exact search


def test_wrong_requests_say_what_is_right(service):
    for path, body, message in (
        ("compare", {}, "send one of id, words, text, image or vector (got none)"),
        ("compare", {"id": "r0", "words": "x"}, "(got id and words)"),
        ("compare", {"id": "r0", "dims": [5]}, "the dims of this index are 4, 8, 16 (got 5)"),
        ("compare", {"id": "r0", "k": 51}, "k must be an integer from 1 to 50"),
        ("map", {"dim": 3}, "the dims of this index are 4, 8, 16 (got 3)"),
        ("items", {"ids": list(range(201))}, "ids must be at most 200 (got 201)"),
    ):
        answer = call(service, "POST", f"{ONE}/{path}", body)
        assert answer.status == 400
        assert message in answer.json["error"]["message"]
    assert call(service, "POST", f"{ONE}/compare", {"id": "gone"}).status == 404
    assert call(service, "GET", "/explorer/files/..%2fview.py").status == 404


def test_changes_of_an_index_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("matryo.serve.explorer.endpoints._FRESH", 0)
    Index.create(tmp_path / "idx", nesting=DIMS).close()
    service = app(index=tmp_path / "idx", writable=True)
    assert call(service, "GET", f"{ONE}/explore").json["examples"] == []
    assert call(service, "GET", f"{ONE}/dims").json["dims"] == []
    assert call(service, "POST", f"{ONE}/map", {"dim": 4}).status == 409
    rows = np.eye(16)[:4].tolist()
    sent = {"ids": [1, 2, 3, 4], "vectors": rows, "payload": [{"text": f"word{n}"} for n in range(4)]}
    assert call(service, "POST", f"{ONE}/upsert", sent).status == 200
    assert call(service, "POST", f"{ONE}/compare", {"words": "word2"}).json["query"] == 3
    assert len(call(service, "POST", f"{ONE}/map", {"dim": 4}).json["ids"]) == 4
    service.close()


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_title_a_long_text_and_a_class_are_found():
    rows = [{"year": 1990 + n % 5, "headline": f"Headline {n}", "code": "x", "abstract": f"{n} " + "words " * 20,
             "section": ["Arts", "Sport"][n % 2]} for n in range(40)]  # fmt: skip
    shown = Shown.of(rows)
    assert (shown.texts, shown.group) == (("headline", "abstract"), "section")   # a year is no class, nor a title
    assert Shown.of([{"code": "x", "year": row["year"]} for row in rows]).group == "year"
    assert Shown.of([{"n": 1}]).texts == ("n",)


def test_pictures_are_data_or_named_addresses_and_nothing_else():
    rows = [{"title": "a", "photo": "https://example.org/a.png"}] * 3
    assert Shown.of(rows).image == ""
    named = Shown.of(rows, Show(("title", "photo")))
    assert named.image == "photo"
    for value, shown in (
        ("https://example.org/b.png?x=1", True), (PNG, True), ("javascript:alert(1)", False), ("//x.org/x.png", False),
        ("data:text/html;base64,AAAA", False), ("data:image/png;base64,AA\"onerror=", False), ("https://a b", False),
        (["https://example.org"], False), (7, False), (None, False),
    ):  # fmt: skip
        assert named.item(1, {"title": "a", "photo": value})["image"] == (value if shown else ""), value
    assert Shown(("title",), "photo").item(1, {"photo": "https://example.org/b.png"})["image"] == ""
    with pytest.raises(InputError, match="must be in the payloads \\(got titel\\): use one of title, photo"):
        Shown.of(rows, Show(("titel",)))


def test_large_pictures_become_small_ones():
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (400, 300, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    image.fromarray(noise).save(buffer, "PNG")
    small = thumbnail("data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode())
    assert image.open(io.BytesIO(base64.b64decode(small.partition(",")[2]))).size == (120, 160)
    assert len(small) < 40_000
    assert thumbnail("data:image/png;base64," + base64.b64encode(b"no picture" * 900).decode()) == ""


def test_the_page_loads_nothing_from_elsewhere(service):
    answer = call(service, "GET", "/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"   # no field of addresses was named
    folder = Path(files.__file__).parent / "page"
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name
        assert "innerHTML" not in text, path.name
        assert len(text.splitlines()) <= 300, path.name
        if path.suffix != ".html":
            assert call(service, "GET", f"/explorer/files/{path.name}").body == path.read_bytes()


# ── hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_of_this_machine_answers_to_no_other_name(serve, index_folder):
    server = serve("--index", index_folder, "--allow-host", "Search.example.org", "--quiet")
    port = server.port
    for host, status in (
        (f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), ("[::1]", 200), ("search.example.org", 200),
        ("evil.example", 421), (f"evil.example:{port}", 421), ("127.0.0.1.evil.example", 421), ("", 421),
    ):  # fmt: skip
        for path in ("/", "/v1/indexes"):
            assert server.ask("GET", path, headers={"host": host}).status == status, host
    with_keys = serve("--index", index_folder, "--quiet", env={"MATRYO_API_KEYS": "k" * 20})
    key = {"authorization": f"Bearer {'k' * 20}", "host": "search.example.org"}   # a proxy; a page elsewhere has no key
    assert with_keys.ask("GET", "/v1/indexes", headers=key).status == 200
