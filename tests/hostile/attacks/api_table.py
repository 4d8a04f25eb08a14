"""Every public callable with arguments that are valid, as a table: name → (callable, arguments)."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import matryo
from attacks.api_values import HAS_TORCH
from matryo import Cascade, EmbeddingSet, Index, Nesting, Plan
from matryo.data import TextRows, array_dataset, pair_dataset, text_dataset
from matryo.embeddings import EmbeddingWriter, Head
from matryo.evaluation import Relevance, Subject, evaluate, predict, trends
from matryo.results import stamp
from matryo.retrieve import Blocks, Request, Stage

Entry = tuple[Callable[..., Any], dict[str, Any]]
ROOMS = [
    "nesting",
    "data",
    "embeddings",
    "metrics",
    "results",
    "baselines",
    "classify",
    "retrieve",
    "evaluation",
    "report",
    *(["heads", "losses", "encoders", "training", "inference", "export"] if HAS_TORCH else []),
]
SLOW = {
    "report.build_report",
    "training.train",
    "evaluation.linear_probe",
    "retrieve.Index.plan",
    "data.emoji",
    "data.emoji_pairs",
    "data.wordnet",
}

# Records whose fields other functions of the library fill, types, and interfaces: nothing is computed from arguments.
RECORDS = {
    "data": "Dataset ImageSplit PairSplit Split TextSplit",
    "embeddings": "Description FileRecord Manifest",
    "baselines": "Baseline",
    "classify": "Answers CascadeCurve CascadeResult",
    "evaluation": "DimRow Disagreement Evaluation FewShot Pairs Predictions Probe Protocol Robustness Similarity "
    "Stream Sts Superclasses Trends ZeroShot",
    "retrieve": "Compaction Engine Hit Hits Int8Block Metric Precision Searcher Shortlist",
    "report": "GradCamStrip",
    "results": "Result SplitResult",
    # Modules of torch, built from modules or from a recipe that was checked, and tensors that torch checks.
    "encoders": "Bert DualEncoder Layered OpenClip ResNet SentenceEncoder SlimmableResNet TimmEncoder Tokens "
    "TransformersEncoder Truncation pool save_shape from_open_clip from_sentence_transformers from_timm "
    "from_transformers truncation_of cut depth_of mflops_per_token sharing",
    "losses": "NestedRankingLoss",
    "inference": "Prediction TrainedModel encode_pairs encode_split",
    "training": "Recipe",
}


def public_names() -> set[str]:
    """The public callables, as room.name."""
    names = set()
    for room in ROOMS:
        module = importlib.import_module(f"matryo.{room}")
        names |= {f"{room}.{name}" for name in module.__all__ if callable(getattr(module, name))}
    return names


class Context:
    """Small valid inputs, and the folder in which calls may write."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.folder, self.made = folder, 0
        self.vectors = rng.standard_normal((40, 8)).astype(np.float32)
        self.labels = np.arange(40) % 4
        self.head = Head.tied(rng.standard_normal((4, 8)), dims=[2, 4, 8])
        about = {
            "classes": list("abcd"),
            "nesting": [2, 4, 8],
            "superclasses": ["x", "y"],
            "superclass_of": [0, 0, 1, 1],
        }
        self.embeddings, self.queries = (
            EmbeddingSet.of(rows, labels=self.labels[: len(rows)], head=self.head, **about)
            for rows in (self.vectors, rng.standard_normal((24, 8)).astype(np.float32))
        )
        self.stored = EmbeddingSet.write(self.new(), self.vectors, labels=self.labels)
        self.relevance = Relevance.of([[row, row] for row in range(24)], np.linspace(1, 2, 24))
        self.predictions = predict(self.queries, self.embeddings)
        self.evaluation = evaluate(self.embeddings, self.queries, progress=False)
        self.trends = trends(self.queries, self.predictions)
        self.subject = Subject("model", 0, self.embeddings, {"test": self.queries}, progress=False)
        self.blocks = Blocks.of(self.vectors, Nesting([2, 4, 8]), int8_up_to=4)
        self.logits = dict(self.head.all_logits(self.vectors))
        self.cascade = Cascade().fit(self.logits, self.labels)
        self.row = stamp("evaluate", "model", self.evaluation.to_figures(), seed=0)
        self.texts = TextRows(["a text", "another one", "a third"] * 4, labels=list(range(3)) * 4)
        images = rng.integers(0, 255, (6, 8, 8, 3)).astype(np.uint8)
        self.images = array_dataset({"train": (images, np.arange(6) % 2)}, ["a", "b"])
        self.closed = self.new()
        Index.create(self.closed, nesting=[2, 4, 8]).close()
        self.renew()

    def new(self) -> str:
        """A path that does not exist."""
        self.made += 1
        return str(self.folder / f"n{self.made}")

    def renew(self) -> None:
        """Open a new index, after a call that changed it."""
        if hasattr(self, "index"):
            self.index.close()
            self._watcher.close()
        self.index = Index.create(self.new(), nesting=[2, 4, 8])
        self.index.add(self.vectors, payload=[{"year": 2000 + row, "name": "a"} for row in range(40)])
        self._watcher = sqlite3.connect(self.index.path / "index.sqlite")

    @property
    def commits(self) -> int:
        """A number that changes with every commit to the index."""
        return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])


def table(given: Context) -> dict[str, Callable[[], Entry]]:
    """Entries by name. Each makes its arguments anew."""
    rows, labels, sets = given.vectors, given.labels, {"database": given.embeddings, "queries": given.queries}
    relevant, totals = np.eye(4, dtype=bool), np.ones(4, int)
    quiet = {"progress": False}
    entries: dict[str, Callable[[], Entry]] = {}

    def add(name: str, call: Callable[..., Any], /, **arguments: Any) -> None:
        def make() -> Entry:
            return call, {
                key: value() if key in ("path", "folder", "out") and callable(value) else value
                for key, value in arguments.items()
            }

        entries[name] = make

    from matryo import baselines, classify, data, evaluation, metrics, nesting, report, results, retrieve

    add("nesting.Nesting", Nesting, dims=[2, 4], weights=[1, 2])
    add("nesting.Nesting.halving", Nesting.halving, dim=64, smallest=8, weights=None)
    add("nesting.Nesting.uniform", Nesting.uniform, dim=64, count=3, smallest=8)
    add("nesting.Nesting.check_fits", Nesting([2, 4]).check_fits, dim=8)
    add("nesting.as_nesting", nesting.as_nesting, dims=[2, 4])
    add("nesting.truncate", nesting.truncate, z=rows, dim=4, normalize=True)
    add("nesting.prefix_norms", nesting.prefix_norms, z=rows, dims=[2, 8])

    add("metrics.label_ranks", metrics.label_ranks, logits=rows, labels=labels)
    add("metrics.relevance", metrics.relevance, retrieved=np.ones((4, 3), int), labels=np.ones(4, int))
    for name in ("hit_rate", "precision", "mean_reciprocal_rank"):
        add(f"metrics.{name}", getattr(metrics, name), relevant=relevant, k=3)
    for name in ("recall", "average_precision", "mean_average_precision"):
        add(f"metrics.{name}", getattr(metrics, name), relevant=relevant, totals=totals, k=3)
    add("metrics.ndcg", metrics.ndcg, grades=np.eye(4), best=np.eye(4)[:, ::-1].cumsum(1)[:, ::-1], k=3)
    add("metrics.majority", metrics.majority, retrieved=np.ones((4, 3), int), k=3)
    add("metrics.pearson", metrics.pearson, x=[1, 2, 3], y=[3, 1, 2])
    add("metrics.spearman", metrics.spearman, x=[1, 2, 3], y=[3, 1, 2])
    add("metrics.mflops", metrics.mflops, count=10, dim=8)
    add("metrics.vector_bytes", metrics.vector_bytes, dim=8, dtype="float32")

    for name in ("PCA", "SVD", "ClassifierSVD", "Truncation", "RandomFeatures", "RandomProjection"):
        kind = getattr(baselines, name)
        options = {"seed": 1} if name.startswith("Random") else {"normalize": True} if name in ("PCA", "SVD") else {}
        add(
            f"baselines.{name}",
            lambda train, kind=kind, **options: kind(**options).fit(train),
            train=given.embeddings,
            **options,
        )
    add(
        "baselines.LadderRung",
        lambda train, rung, seed: baselines.LadderRung(rung, seed).fit(train),
        train=given.embeddings,
        rung="pca",
        seed=1,
    )
    fitted = baselines.PCA().fit(given.embeddings)
    add("baselines.Map", fitted.apply, embeddings=given.queries)
    add("baselines.baseline", baselines.baseline, name="jl", seed=1)

    about = {
        "ids": list(range(40)),
        "labels": labels,
        "head": given.head,
        "nesting": [4, 8],
        "classes": list("abcd"),
        "model": "m",
        "dataset": "d",
        "split": "s",
        "normalized": None,
    }
    add("embeddings.EmbeddingSet.of", EmbeddingSet.of, vectors=rows, **about)
    add(
        "embeddings.EmbeddingSet.write",
        EmbeddingSet.write,
        path=given.new,
        vectors=rows,
        dtype="float32",
        overwrite=False,
        **about,
    )
    add("embeddings.EmbeddingSet.open", EmbeddingSet.open, path=str(given.stored.path))
    add("embeddings.EmbeddingSet.at", given.stored.at, dim=4, normalize=True)
    add("embeddings.EmbeddingSet.select", given.embeddings.select, rows=[1, 2, 3])
    add("embeddings.EmbeddingSet.batches", given.embeddings.batches, rows=7)
    add(
        "embeddings.EmbeddingSet.transformed",
        given.embeddings.transformed,
        vectors=rows[:, :4],
        head=None,
        nesting=[2, 4],
    )
    add(
        "embeddings.EmbeddingWriter",
        _written,
        path=given.new,
        vectors=rows,
        labels=labels,
        ids=None,
        dim=8,
        dtype="float32",
        fingerprint="f",
        overwrite=False,
        sync_seconds=1.0,
    )
    add("embeddings.Head.tied", Head.tied, weight=np.ones((3, 8)), bias=np.ones(3), dims=[4, 8])
    add("embeddings.Head.separate", Head.separate, weights={4: np.ones((3, 4))}, biases={4: np.ones(3)})
    add("embeddings.Head.logits", given.head.logits, vectors=rows, dim=4)
    add("embeddings.Head.all_logits", given.head.all_logits, vectors=rows, dims=[4, 8])

    risk = {"strategy": "risk", "max_loss": 0.5}
    for name, value in {
        "nesting": [2, 4, 8],
        "head": None,
        "classes": None,
        "strategy": "greedy",
        "expected_dim": 6,
        "max_loss": 0.5,
        "confidence": 0.9,
        "seed": 0,
    }.items():
        usual = {"strategy": "budget"} if name == "expected_dim" else risk
        add(
            f"classify.Cascade({name})",
            lambda X, y, usual=usual, **one: Cascade(**usual | one).fit(X, y),
            X=given.logits,
            y=labels,
            **{name: value},
        )
    for name in ("predict", "predict_proba", "exit_dim", "answers"):
        add(f"classify.Cascade.{name}", getattr(given.cascade, name), X=given.logits)
    for name in ("score", "measure"):
        add(f"classify.Cascade.{name}", getattr(given.cascade, name), X=given.logits, y=labels)
    add("classify.Cascade.save", given.cascade.save, path=given.new)
    add("classify.Cascade.load", Cascade.load, path=given.new, head=None)
    add("classify.average_views", classify.average_views, logits=np.ones((2, 3, 4)))
    add(
        "classify.cascade_curve",
        classify.cascade_curve,
        X=given.logits,
        y=labels,
        nesting=None,
        head=None,
        strategy="greedy",
        stops=None,
        confidence=0.9,
        holdouts=2,
        fraction=0.5,
        seed=0,
        **quiet,
    )

    add("evaluation.evaluate", evaluate, **sets, nesting=None, dims=[4, 8], interpolated=True, ks=[5, 10], **quiet)
    pair = {"queries": given.queries, "candidates": given.queries, "relevance": given.relevance, "dims": [4, 8]}
    add("evaluation.pairs", evaluation.pairs, **pair, ks=[1, 5], sides=("a", "b"), **quiet)
    add("evaluation.sts", evaluation.sts, **pair)
    add("evaluation.predict", predict, **sets, dims=[4, 8], **quiet)
    add(
        "evaluation.disagreement",
        evaluation.disagreement,
        embeddings=given.queries,
        predictions=given.predictions,
        low=2,
        high=8,
        limit=3,
    )
    add(
        "evaluation.few_shot",
        evaluation.few_shot,
        embeddings=given.embeddings,
        shots=[1, 2],
        ways=2,
        draws=2,
        dims=[4],
        classes=None,
        about="all",
        seed=0,
        **quiet,
    )
    add(
        "evaluation.linear_probe",
        evaluation.linear_probe,
        **sets,
        dims=[4],
        l2=1e-2,
        tolerance=1e-2,
        iterations=3,
        **quiet,
    )
    add(
        "evaluation.stream",
        evaluation.stream,
        **sets,
        novel=[3],
        draws=1,
        tail_below=None,
        zipf=None,
        dims=[4],
        seed=0,
        **quiet,
    )
    add(
        "evaluation.similarity_span",
        evaluation.similarity_span,
        embeddings=given.embeddings,
        others=None,
        relevance=None,
        pairs=50,
        dims=[4],
        seed=0,
    )
    add("evaluation.zero_shot", evaluation.zero_shot, texts=given.embeddings, queries=given.queries, dims=[4])
    for name in ("superclass_accuracy", "trends"):
        add(f"evaluation.{name}", getattr(evaluation, name), embeddings=given.queries, predictions=given.predictions)
    add("evaluation.robustness", evaluation.robustness, evaluations=[given.evaluation], oracles=[given.trends])
    add("evaluation.search", evaluation.search, database=rows, queries=rows[:3], dims=[4, 8], k=3, fast=False, **quiet)
    add("evaluation.default_dims", evaluation.default_dims, nesting=Nesting([2, 4]), interpolated=True)
    add("evaluation.measure", evaluation.measure, subject=given.subject, protocol="evaluate")
    add(
        "evaluation.measure_baseline",
        evaluation.measure_baseline,
        subject=given.subject,
        name="jl",
        protocol="evaluate",
        draws=1,
    )
    add("evaluation.Relevance.of", Relevance.of, pairs=[[0, 1], [1, 2]], grades=[1.0, 2.0])
    add("evaluation.Relevance.open", Relevance.open, path=given.new, queries=given.queries, candidates=given.queries)
    add("evaluation.Relevance.check_fits", given.relevance.check_fits, queries=24, candidates=24, judged=False)
    add(
        "evaluation.Subject",
        lambda **fields: evaluation.measure(Subject(**fields), "evaluate"),
        name="m",
        seed=0,
        database=given.embeddings,
        queries={"test": given.queries},
        asked_dims=(4, 8),
        progress=False,
    )
    add("evaluation.table", evaluation.table, results=[given.evaluation], show=None, markdown=False, width=100)
    add("evaluation.Evaluation.at", given.evaluation.at, dim=8)

    index = given.index
    add(
        "retrieve.Index.create",
        _closed(Index.create),
        folder=given.new,
        nesting=[2, 4],
        dtype="float32",
        int8_up_to=0,
        metric="cosine",
        limits=None,
        model={"name": "a", "run": "runs/a"},
    )
    add("retrieve.Index.set_model", index.set_model, model={"name": "a"})
    add("retrieve.Index.add_source", index.add_source, digest="a", facts={"path": "a", "size": 1, "rows": 1})
    add("retrieve.Index.open", _closed(Index.open), folder=str(index.path), writable=False, limits=None)
    add("retrieve.Index.recover", _closed(Index.recover), folder=given.closed)
    add("retrieve.Index.backup", index.backup, path=given.new)
    add("retrieve.Index.exists", Index.exists, folder=str(index.path))
    add("retrieve.Index.add", index.add, vectors=rows[:2], ids=[1000, 1001], payload=[{"a": 1}, {}])
    add("retrieve.Index.upsert", index.upsert, vectors=rows[:2], ids=[0, 1], payload=[{"a": 1}, {}])
    add("retrieve.Index.add_batches", index.add_batches, batches=[rows[:2]])
    add("retrieve.Index.delete", index.delete, ids=[3])
    add("retrieve.Index.get", index.get, ids=[0, 5])
    add("retrieve.Index.__getitem__", index.__getitem__, id=5)
    add("retrieve.Index.__contains__", index.__contains__, id=5)
    add(
        "retrieve.Index.search",
        index.search,
        queries=rows[:3],
        k=3,
        plan=Plan.adaptive(2, 8, keep=9, k=3),
        where={"year": 2001},
        threads=1,
    )
    add("retrieve.Index.search(exact)", index.search, queries=rows[:3], k=3, exact=True, payload=True)
    add("retrieve.Index.where", index.where, where={"year": {"$gte": 2020}, "name": {"$in": ["a"]}})
    add("retrieve.Index.where(inside)", lambda of: index.where({"year": of}), of={"$gte": 2020})
    add("retrieve.Index.add(payload)", lambda of: index.add(rows[:1], payload=[{"a": of}]), of=3)
    add("retrieve.Index.where(check)", lambda where: index.where(where, check=True), where={"year": 3})
    add("retrieve.Index.build", index.build, sketch=True, partition=2)
    add("retrieve.Index.to", index.to, device=None)
    add("retrieve.Index.sample", index.sample, count=3, seed=0)
    add(
        "retrieve.Index.plan",
        index.plan,
        recall=0.9,
        k=3,
        queries=rows[:4],
        cost="bytes",
        budget=None,
        labels=None,
        confidence=0.9,
        seed=0,
        **quiet,
    )
    for name in ("adaptive", "funnel"):
        add(f"retrieve.Plan.{name}", getattr(Plan, name), short=2, long=8, keep=20, k=5, precision="full", probe=None)
    add("retrieve.Plan.single", Plan.single, dim=8, k=5, precision="full", ef=None)
    add("retrieve.Plan", Plan, stages=(Stage(2, 9), Stage(8, 3)), probe=None, ef=None)
    add("retrieve.Plan.of", Plan.of, stages=[(2, 9), (8, 3)])
    add("retrieve.Plan.from_dict", Plan.from_dict, fields=Plan.single(8).to_dict())
    for name in ("bytes", "table"):
        add(f"retrieve.Plan.{name}", getattr(Plan.single(8), name), count=100, dtype="float32")
    add("retrieve.Plan.mflops", Plan.single(8).mflops, count=100, reuse=True)
    add("retrieve.Plan.for_k", Plan.single(8).for_k, k=3)
    add("retrieve.Stage", Stage, dim=8, keep=3, precision="full", margin=None)
    add("retrieve.Blocks.of", Blocks.of, vectors=rows, nesting=Nesting([4, 8]), dtype="float32", int8_up_to=4)
    add("retrieve.Blocks.open", Blocks.open, folder=given.new)
    add(
        "retrieve.execute",
        retrieve.execute,
        blocks=given.blocks,
        queries=rows[:3],
        plan=Plan.single(8),
        k=3,
        metric="cosine",
        allowed=None,
    )
    request = Request(given.blocks, rows[:3])
    add(
        "retrieve.Request",
        lambda **fields: retrieve.execute(k=3, plan=Plan.single(8), **fields),
        blocks=given.blocks,
        queries=rows[:3],
        metric="cosine",
        allowed=np.ones(40, bool),
    )
    add("retrieve.first_stage", retrieve.first_stage, request=request, stage=Stage(8, 3))
    add(
        "retrieve.rerank",
        retrieve.rerank,
        request=request,
        shortlist=retrieve.first_stage(request, Stage(2, 9)),
        stage=Stage(8, 3),
        done=2,
    )

    add("results.stamp", stamp, kind="evaluate", subject="m", figures={"dims": [2]}, seed=0, hardware="", role="")
    add(
        "results.Row",
        results.Row,
        kind="evaluate",
        subject="m",
        figures={},
        seed=0,
        command="",
        commit="",
        hardware="",
        versions={},
        when="",
        role="",
    )
    for name in ("append_rows", "write_rows"):
        add(f"results.{name}", getattr(results, name), path=lambda: Path(given.new()), rows=[given.row])
    for name in ("read_rows", "holds_rows", "check_may_append"):
        add(f"results.{name}", getattr(results, name), path=lambda: Path(given.new()))
    add("results.as_tuples", results.as_tuples, value=[[1]])
    add("results.versions", results.versions)
    add("results.command_line", results.command_line, argv=["matryo", "info"])
    add("results.figures_by_dim", results.figures_by_dim, kind="evaluate", figures=given.row.figures)
    add("results.infer_role", results.infer_role, figures=given.row.figures)
    add("results.is_share", results.is_share, title="top-1")
    add("results.table", results.table, results=[given.evaluation], show=None, markdown=True, width=80)

    add(
        "report.build_report",
        report.build_report,
        rows=[given.row],
        out=given.new,
        title="t",
        pictures=None,
        strips=(),
        credits=(),
        overwrite=False,
    )
    add("report.check_out", report.check_out, out=given.new, overwrite=False)

    split = given.images.split("train")
    add(
        "data.array_dataset",
        array_dataset,
        splits={"train": (np.zeros((2, 4, 4, 3), np.uint8), [0, 1])},
        classes=["a", "b"],
        name="n",
    )
    add(
        "data.array_dataset(images)",
        lambda images, labels: array_dataset({"train": (images, labels)}),
        images=np.zeros((2, 4, 4, 3), np.uint8),
        labels=[0, 1],
    )
    add("data.hold_out", data.hold_out, dataset=given.images, share=0.5, split="train", name="rest", seed=0)
    add("data.text_dataset", text_dataset, splits={"train": (["a", "b"], [0, 1])}, classes=["a", "b"], name="n")
    add(
        "data.text_dataset(texts)",
        lambda texts, labels: text_dataset({"train": (texts, labels)}),
        texts=["a", "b"],
        labels=[0, 1],
    )
    add("data.pair_dataset", pair_dataset, splits={"train": [["a", "b"], ["c", "d"]]}, name="n")
    add("data.pair_dataset(pairs)", lambda pairs: pair_dataset({"train": pairs}), pairs=[["a", "b"]])
    add("data.pairs_by_label", data.pairs_by_label, split=given.texts, seed=0, per_item=1)
    add(
        "data.Pairs",
        data.Pairs,
        queries=given.texts,
        candidates=given.texts,
        pairs=[[0, 0], [1, 1]],
        grades=None,
        negatives=None,
        by_label=False,
        source="s",
    )
    add("data.TextRows", TextRows, texts=["a", "b"], labels=[0, 1], names=["x", "y"], source="s")
    add("data.TextRows.subset", given.texts.subset, indices=[0, 2])
    add("data.Dataset.split", given.images.split, name="train")
    for name in ("beir_folder", "caption_folder", "corpus_folder", "packed_dataset", "pair_folder", "text_folder"):
        add(f"data.{name}", getattr(data, name), root=str(given.folder), classes=["a"])
    for name in ("caption_shards", "shard_dataset"):
        add(f"data.{name}", getattr(data, name), root=str(given.folder), classes=["a"], threads=1, **quiet)
    add("data.image_folder", data.image_folder, root=str(given.folder), classes=["a"], **quiet)
    add("data.open_dataset", data.open_dataset, source="texts", root=str(given.folder), classes=None)
    add("data.open_unlabelled", data.open_unlabelled, paths=str(given.folder))
    add("data.decode_all", data.decode_all, split=split, indices=[0, 1], threads=1, **quiet)
    add(
        "data.pack",
        data.pack,
        split=split,
        path=lambda: given.new() + ".npz",
        size=8,
        quality=90,
        lossless=False,
        threads=1,
        **quiet,
    )
    add("data.pack_dataset", data.pack_dataset, dataset=given.images, root=given.new(), size=8)
    if importlib.util.find_spec("tokenizers"):
        tokenizer = data.Tokenizer.train(["a few words", "and more words"], vocabulary=40)
        add("data.Tokenizer.train", data.Tokenizer.train, texts=["a b"], vocabulary=30, lowercase=True)
        add("data.Tokenizer.encode", tokenizer.encode, texts=["words"], length=8)
        add("data.Tokenizer.flat", tokenizer.flat, texts=["words"], length=8)
        add("data.Tokenizer.decode", tokenizer.decode, ids=[1, 2])
        add("data.Tokenizer.open", data.Tokenizer.open, path=given.new)
        add("data.Tokenizer.save", tokenizer.save, path=lambda: given.new() + ".json")
    for name in ("emoji", "emoji_names", "emoji_pairs", "wordnet"):
        add(f"data.{name}", getattr(data, name))
    if HAS_TORCH:
        from attacks.api_torch import add_torch

        add_torch(add, given)
    return entries


def _written(path: Any, vectors: Any, labels: Any, ids: Any, **options: Any) -> Any:
    with EmbeddingWriter(path, **options) as writer:
        writer.append(vectors, labels, ids)


def _closed(make: Callable[..., Any]) -> Callable[..., Any]:
    def call(**arguments: Any) -> None:
        make(**arguments).close()

    return call


assert matryo
