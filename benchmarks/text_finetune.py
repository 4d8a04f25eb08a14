"""Finetune a sentence encoder into a nested one, beside what is had without and beside sentence-transformers' own.

    python benchmarks/text_finetune.py --data DIR --model all-MiniLM-L6-v2 --seeds 0 1 2

The arms: ``original`` truncated; ``pca`` fitted on all training texts, and ``pca-task`` on those of each task;
``plain``, finetuned at full dim alone and truncated; ``nested``, with matryo's encoder and nested_contrastive;
``matryoshka``, with sentence-transformers' model and its MatryoshkaLoss. All that are trained see the same batches in
the same order, with the same optimizer, schedule and number of steps. Then a step of each is timed, in turns.

DIR holds scifact/ (BEIR's layout), clinc150/ (train.jsonl, test.jsonl: text, label) and stsb/ (test.jsonl: sentence1,
sentence2, score). The pairs of words and glosses come with the package.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.stepping import Clock, summary, wait
from support.text_tasks import Batch, Embed, Floats, Source, Tasks, batches, encode, sources
from torch import Tensor, nn
from tqdm import tqdm

from matryo import EmbeddingSet, Nesting
from matryo.baselines import PCA
from matryo.data import Tokenizer
from matryo.encoders import Bert, Tokens
from matryo.losses import nested_contrastive
from matryo.losses.sentence_transformers.ranking import NestedRankingLoss
from matryo.results import append_rows, stamp

SCALE = 20.0   # of sentence-transformers' ranking loss: one over the temperature
TRAINED = ("plain", "nested", "matryoshka")
UNTRAINED = ("original", "pca", "pca-task")


@dataclass(frozen=True)
class Arm:
    """A model with its loss: how its vectors are computed, and what a step minimises."""

    model: nn.Module
    embed: Embed
    loss: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], Tensor]


def main() -> None:
    """Every arm with every seed; rows are appended as they come, so that a run that is cut keeps its start."""
    args = parse()
    with tempfile.TemporaryDirectory() as scratch:
        if args.quick:
            from support.text_quick import make

            make(Path(scratch))
            args.data, args.model = Path(scratch), Path(scratch) / "model"
            args.steps, args.batch, args.rounds, args.fit = min(args.steps, 20), 16, 3, 200
            args.length, args.test_length, args.lr = 32, 32, 5e-3
        Study(args).run()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of scifact/, clinc150/ and stsb/")
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of a sentence-transformers BERT")
    parser.add_argument("--arms", nargs="+", default=[*UNTRAINED, *TRAINED], choices=[*UNTRAINED, *TRAINED])
    parser.add_argument("--dims", type=int, nargs="+", help="the nesting (default: d halved down to 12)")
    parser.add_argument("--also", type=int, nargs="*", help="dims to measure beside (default: 16, 32, … below d)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--length", type=int, default=128, help="tokens of a text in training")
    parser.add_argument("--test-length", type=int, default=256, help="tokens of a text when it is measured")
    parser.add_argument("--fit", type=int, default=20_000, help="texts of each side of a source that PCA looks at")
    parser.add_argument("--rounds", type=int, default=60, help="timed steps an arm")
    parser.add_argument("--rows", "--out", type=Path, help="append the rows here [docs/results/text-finetune.jsonl]")
    parser.add_argument("--quick", action="store_true", help="a tiny model and made-up texts: does it run?")
    args = parser.parse_args()
    if not args.quick and not (args.data and args.model):
        parser.error("--data DIR and --model DIR, or --quick")
    place = Path(tempfile.gettempdir()) if args.quick else Path("docs/results")   # a quick try is no result
    args.rows = args.rows or place / "text-finetune.jsonl"
    return args


class Study:
    """All arms on one machine."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = Tokenizer.open(args.model)
        self.original = Bert.open(args.model).to(self.device).eval()
        full = self.original.dim
        self.nesting = Nesting(args.dims or _halved(full))
        also = [dim for dim in (16, 32, 64, 128, 256) if dim < full] if args.also is None else args.also
        self.dims = sorted({*self.nesting.dims, *also})
        self.tasks = Tasks(self.tokenizer, args.data, args.test_length)
        self.sources = sources(self.tokenizer, args.data, args.length, seed=0)

    def run(self) -> None:
        """Untrained arms once, trained ones for each seed, then the times."""
        chosen = [arm for arm in UNTRAINED if arm in self.args.arms]
        if chosen:
            self._untrained(chosen)
        for seed in self.args.seeds:
            self.sources = sources(self.tokenizer, self.args.data, self.args.length, seed)
            for arm in (arm for arm in TRAINED if arm in self.args.arms):
                self._trained(arm, seed)
        if trained := [arm for arm in TRAINED if arm in self.args.arms]:
            self._times(trained)

    def _untrained(self, chosen: Sequence[str]) -> None:
        embed = self.arm("nested").embed
        vectors = self.tasks.encode(embed, self.device)
        if "original" in chosen:
            self._store("original", None, self.tasks.grade(vectors, self.dims), {})
        if {"pca", "pca-task"} & {*chosen}:
            texts = self._training_vectors(embed)
            every = np.concatenate(list(texts.values()))
            for arm, of in (("pca", dict.fromkeys(texts, every)), ("pca-task", texts)):
                if arm in chosen:
                    figures = self.tasks.grade(_mapped(vectors, of | {"stsb": every}), self.dims)
                    self._store(arm, None, figures, {"fitted_on": {name: len(rows) for name, rows in texts.items()}})

    def _training_vectors(self, embed: Embed) -> dict[str, Floats]:
        rng, found = np.random.default_rng(0), {}
        for source in self.sources:
            sides = {id(side): side for side in (source.queries, source.candidates)}.values()
            drawn = [rng.permutation(len(side))[: self.args.fit] for side in sides]
            each = [encode(embed, side, self.device, rows) for side, rows in zip(sides, drawn, strict=True)]
            found[source.name] = np.concatenate(each)
        return found

    def _trained(self, name: str, seed: int) -> None:
        arm = self.arm(name)
        order = batches(self.sources, self.args.steps, self.args.batch, seed)
        torch.manual_seed(seed)
        begin = time.perf_counter()
        times, losses = self.finetune(arm, order, f"{name}, seed {seed}")
        more = {"seconds": round(time.perf_counter() - begin, 2), "step_ms": summary(times), "losses": losses}
        arm.model.eval()
        self._store(name, seed, self.tasks.grade(self.tasks.encode(arm.embed, self.device), self.dims), more)

    def finetune(self, arm: Arm, order: Sequence[Batch], title: str) -> tuple[list[float], list[float]]:
        """Train; gives the milliseconds of each step but the first, and the loss now and then."""
        step = Step(arm, self.args.lr, len(order), self.device)
        clock, losses = Clock(self.device), []
        arm.model.train()
        for number, batch in enumerate(tqdm(order, desc=title, mininterval=1.0)):
            clock.tick()
            loss = step(*self.texts(batch))
            if number % max(1, len(order) // 20) == 0:
                losses.append(round(float(loss), 4))
        clock.tick()
        return clock.milliseconds()[min(20, len(order) // 2) :], losses

    def texts(self, batch: Batch) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Both sides of a batch, on the device."""
        source: Source = self.sources[batch.source]
        rows = source.pairs[batch.rows]
        return source.queries.batch(rows[:, 0], self.device), source.candidates.batch(rows[:, 1], self.device)

    def arm(self, name: str) -> Arm:
        """A model that begins as the original, with the loss of an arm."""
        if name in ("matryoshka", "nested loss"):
            return self._theirs(name)
        model, nesting = copy.deepcopy(self.original), Nesting([self.nesting.dim]) if name == "plain" else self.nesting

        def embed(ids: Tensor, mask: Tensor) -> Tensor:
            vectors: Tensor = model(Tokens(ids, mask))
            return vectors

        return Arm(model, embed, lambda a, b: nested_contrastive(embed(*a), embed(*b), nesting, 1 / SCALE))

    def _theirs(self, name: str) -> Arm:
        library: Any = importlib.import_module("sentence_transformers")
        losses: Any = importlib.import_module("sentence_transformers.sentence_transformer.losses")
        model = library.SentenceTransformer(str(self.args.model), device=str(self.device)).float()
        ranking = losses.MultipleNegativesRankingLoss(model, scale=SCALE)
        loss = (
            losses.MatryoshkaLoss(model, ranking, list(self.nesting.dims))
            if name == "matryoshka"
            else NestedRankingLoss(model, self.nesting, scale=SCALE)
        )

        def features(ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
            return {"input_ids": ids, "attention_mask": mask.long()}

        def embed(ids: Tensor, mask: Tensor) -> Tensor:
            vectors: Tensor = model(features(ids, mask))["sentence_embedding"]
            return vectors

        return Arm(model, embed, lambda a, b: loss([features(*a), features(*b)], None))

    def _times(self, names: Sequence[str]) -> None:
        """Steps of all arms in turns, each on the same batches, so that whatever disturbs one disturbs all."""
        names = [*names, *(["nested loss"] if "matryoshka" in names else [])]
        rounds = self.args.rounds
        steps = {name: Step(self.arm(name), self.args.lr, 2 * rounds, self.device) for name in names}
        order = batches(self.sources, 5 + rounds, self.args.batch, seed=0)
        times: dict[str, list[float]] = {name: [] for name in names}
        for number, batch in enumerate(tqdm(order, desc="times", mininterval=1.0)):
            texts = self.texts(batch)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                wait(self.device)
                begin = time.perf_counter()
                steps[name](*texts)
                wait(self.device)
                if number >= 5:
                    times[name].append((time.perf_counter() - begin) * 1000)
        figures = {"steps": {name: summary(some) for name, some in times.items()}}
        for name, one in figures["steps"].items():
            print(f"  a step of {name:12} {one['p50']:8.2f} ms")
        self._append("text-steps", "a training step", figures, None)

    def _store(self, arm: str, seed: int | None, figures: dict[str, Any], more: dict[str, Any]) -> None:
        settings = {name: getattr(self.args, name) for name in ("steps", "batch", "lr", "length", "test_length")}
        about = {"arm": arm, "dims": self.dims, "trained": list(self.nesting.dims), **figures, **more}
        if arm in TRAINED:
            about |= settings | {"pairs": {source.name: len(source.pairs) for source in self.sources}}
        self._append("text-finetune", arm, about, seed)
        print(f"{arm} seed {seed}")
        for task, metric in (("scifact", "ndcg@10"), ("clinc150", "1-nn")):
            values = zip(self.dims, figures[task][metric], strict=True)
            print(f"  {task:8} {metric:7} ", *(f"{dim}:{100 * value:.1f}" for dim, value in values), flush=True)

    def _append(self, kind: str, subject: str, figures: dict[str, Any], seed: int | None) -> None:
        figures = {**figures, "model": self.args.model.name, "quick": self.args.quick}
        if "matryoshka" in self.args.arms:
            figures["sentence_transformers"] = metadata.version("sentence-transformers")
        hardware = torch.cuda.get_device_name() if self.device.type == "cuda" else ""
        append_rows(self.args.rows, [stamp(kind, subject, figures, seed=seed, hardware=hardware)])


class Step:
    """One step of training: half precision on a GPU, AdamW, a learning rate that rises and falls in straight lines."""

    def __init__(self, arm: Arm, lr: float, steps: int, device: torch.device) -> None:
        self.arm, self.device = arm, device
        self.weights = [weight for weight in arm.model.parameters() if weight.requires_grad]
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.weights, lr=lr, weight_decay=0.01, fused=cuda)
        warm = max(1, steps // 10)
        rate = torch.optim.lr_scheduler.LambdaLR
        self.schedule = rate(self.optimizer, lambda at: min((at + 1) / warm, (steps - at) / max(1, steps - warm)))
        arm.model.train()

    def __call__(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        """Take it; gives the loss."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.arm.loss(a, b)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


def _mapped(vectors: dict[str, Floats], training: dict[str, Floats]) -> dict[str, Floats]:
    """Each list of vectors through the PCA of its task's training texts."""
    maps = {name: PCA().fit(EmbeddingSet.of(rows)) for name, rows in training.items()}
    return {
        name: np.asarray(maps[name.split()[0]].apply(EmbeddingSet.of(rows)).vectors) for name, rows in vectors.items()
    }


def _halved(full: int) -> list[int]:
    dims = [full]
    while dims[0] % 2 == 0 and dims[0] // 2 >= min(12, full):
        dims.insert(0, dims[0] // 2)
    return dims


if __name__ == "__main__":
    main()
