"""The HTTP server: embeddings beside infinity and beside sentence-transformers alone, search beside the library, load.

    python benchmarks/serve.py embeddings --model MODEL --infinity VENV/bin/infinity_emb
    python benchmarks/serve.py search
    python benchmarks/serve.py load --model MODEL

``embeddings`` sends texts of 4 to 64 words to one server after the other, with clients on the same cores, and calls
``SentenceTransformer.encode`` on them. ``search`` runs the server on one core and its clients on another, and
``Index.search`` on the first. ``load`` finds the rate that the server sustains, then sends 8 times as much. MODEL is a
sentence-transformers folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support.http_load import (
    Outcome,
    closed_loop,
    encoded,
    free_port,
    open_loop,
    request,
    resident,
    server,
    texts,
)

from matryo import Index
from matryo.results import append_rows, stamp

_MATRYO = [sys.executable, "-m", "matryo", "serve", "--quiet"]
_CLIENTS = ((1, 1), (8, 1), (32, 1), (4, 32))  # clients, and texts per request


def main() -> None:
    """Run one of the measurements, and store its row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["embeddings", "search", "load"])
    parser.add_argument("--model", type=Path, help="a sentence-transformers folder")
    parser.add_argument("--infinity", type=Path, help="the program infinity_emb of an environment that has it")
    parser.add_argument("--ceilings", type=Path, help="a Python with uvicorn[standard] and starlette: "
                        "also measure search requests that are answered with constant bytes")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement; of the load")
    parser.add_argument("--rounds", type=int, default=2, help="of embeddings")
    parser.add_argument("--rows", type=int, default=100_000, help="vectors of the index")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--wait", type=float, default=0.05, help="the --wait of the server under load")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/serve.jsonl"))
    args = parser.parse_args()
    measure = {"embeddings": embeddings, "search": search, "load": load}[args.what]
    subject, figures = measure(args)
    print(json.dumps(figures, indent=1))
    append_rows(args.out, [stamp("serve", subject, figures, seed=args.seed)])


def embeddings(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Texts per second and latency of our server, of infinity, and of the library alone, in turns."""
    inputs, ours, theirs = texts(2048, args.seed), free_port(), free_port()
    names = ("matryo", "infinity") if args.infinity else ("matryo",)
    paths = {"matryo": (ours, "/v1/embeddings"), "infinity": (theirs, "/embeddings")}
    outcomes: dict[str, list[Outcome]] = {}
    alone: list[float] = []
    with contextlib.ExitStack() as running:
        encode = running.enter_context(encode_alone(args.model, inputs))
        command = [*_MATRYO, f"m={args.model}", "--port", str(ours)]
        running.enter_context(server(command, ours, "/health/ready"))
        if args.infinity:
            command = [str(args.infinity), "v2", "--model-id", str(args.model), "--served-model-name", "m"]
            command += ["--engine", "torch", "--no-bettertransformer", "--device", "cpu", "--port", str(theirs)]
            running.enter_context(server([*command, "--log-level", "error"], theirs, "/health"))
        for clients, batch in _CLIENTS * args.rounds:
            alone.append(encode(args.seconds))
            for name in names:
                make = asks(paths[name][1], "m", inputs, batch, None)
                outcome = closed_loop(paths[name][0], make, clients, args.seconds)
                outcomes.setdefault(f"{name}: {clients} × {batch}", []).append(outcome)
        make = asks("/v1/embeddings", "m", inputs, 1, 32)
        outcomes["matryo, 32 dims: 8 × 1"] = [closed_loop(ours, make, 8, args.seconds)]
    figures: dict[str, Any] = {"encode alone": {"per_second": round(float(np.median(alone)), 1)}}
    for name, several in sorted(outcomes.items()):
        figures[name] = joined(several).figures(int(name.rpartition(" ")[2])) | {"bytes": len(several[0].body)}
    for number, (clients, batch) in enumerate(_CLIENTS):   # each beside what was measured just before
        load = f"{clients} × {batch}"
        rates = {name: [one.figures(batch)["per_second"] for one in outcomes[f"{name}: {load}"]] for name in names}
        own = alone[number :: len(_CLIENTS)]
        figures[f"matryo / encode: {load}"] = ratio(rates["matryo"], own)
        if args.infinity:
            figures[f"matryo / infinity: {load}"] = ratio(rates["matryo"], rates["infinity"])
    return f"embeddings of {args.model.name}", figures


def joined(outcomes: list[Outcome]) -> Outcome:
    """The answers of all rounds."""
    whole = Outcome(sum(one.seconds for one in outcomes))
    whole.latencies = [latency for one in outcomes for latency in one.latencies]
    return whole


def ratio(ours: list[float], others: list[float]) -> float:
    """The median of the ratios within a round."""
    return round(float(np.median([own / other for own, other in zip(ours, others, strict=True)])), 2)


def asks(path: str, model: str, inputs: list[str], batch: int, dim: int | None) -> Callable[[], bytes]:
    """Requests for the inputs, again and again."""
    fields = {"model": model, **({} if dim is None else {"dimensions": dim})}
    made = [
        request(path, {"input": inputs[at : at + batch] if batch > 1 else inputs[at], **fields})
        for at in range(0, len(inputs), batch)
    ]
    endless = itertools.cycle(made)
    return lambda: next(endless)


@contextlib.contextmanager
def encode_alone(model: Path, inputs: list[str]) -> Iterator[Callable[[float], float]]:
    """Texts per second of ``SentenceTransformer.encode`` in a process of its own, as a caller would use it."""
    code = (
        "import sys, json, time\nfrom sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(sys.argv[1], device='cpu'); texts = json.loads(sys.stdin.readline())\n"
        "model.encode(texts[:256]); done = 0\n"
        "for line in sys.stdin:\n"
        "    start, count = time.perf_counter(), 0\n"
        "    while time.perf_counter() - start < float(line):\n"
        "        model.encode([texts[(done + i) % len(texts)] for i in range(256)]); done += 256; count += 256\n"
        "    print(count / (time.perf_counter() - start), flush=True)"
    )
    command, environment = [sys.executable, "-c", code, str(model)], {**os.environ, "HF_HUB_OFFLINE": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        sending, receiving = process.stdin, process.stdout
        sending.write(json.dumps(inputs) + "\n")

        def measure(seconds: float) -> float:
            sending.write(f"{seconds}\n")
            sending.flush()
            return float(receiving.readline())

        yield measure
        sending.close()


def search(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Queries per second and the latency of a request: in this process on core 0, and from clients on core 1."""
    draw, figures, port = np.random.default_rng(args.seed), dict[str, Any](), free_port()
    centres = draw.normal(size=(1000, args.dim)).astype(np.float32)
    rows = centres[draw.integers(1000, size=args.rows)] + draw.normal(size=(args.rows, args.dim)).astype(np.float32)
    queries = centres[draw.integers(1000, size=2016)] + draw.normal(size=(2016, args.dim)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        with Index.create(f"{folder}/idx", [32, 64, 128, args.dim]) as index:
            index.add(rows)
            index.build()
            choice = index.plan(recall=0.95, queries=queries[:1000], progress=False)
        plans = {"plan": choice.plan, "exact": None}
        os.sched_setaffinity(0, {0})
        with Index.open(f"{folder}/idx") as index:
            for (name, plan), batch in itertools.product(plans.items(), (1, 32)):
                figures[f"{name}: in process, {batch}"] = in_process(index, queries, plan, batch, args.seconds)
        os.sched_setaffinity(0, {1})
        bodies = {(name, batch): search_requests(queries, plan, batch) for name, plan in plans.items()
                  for batch in (1, 32)}  # fmt: skip
        with server([*_MATRYO, "--index", f"{folder}/idx", "--port", str(port)], port, "/health/ready", {0}):
            for (name, batch), made in bodies.items():
                for clients in (1, 8):
                    outcome = closed_loop(port, itertools.cycle(made).__next__, clients, args.seconds)
                    figures[f"{name}: {clients} clients × {batch}"] = outcome.figures(batch)
        for app in ("bare", "starlette") if args.ceilings else ():
            port, constant = free_port(), bodies["plan", 1]
            command = [str(args.ceilings), "-m", "uvicorn", "--app-dir", "benchmarks", "--no-access-log", "--log-level",
                       "error", "--port", str(port), f"support.http_ceiling:{app}"]  # fmt: skip
            command += ["--factory"] if app == "starlette" else []
            with server(command, port, "/", {0}):
                outcome = closed_loop(port, itertools.cycle(constant).__next__, 8, args.seconds)
                figures[f"{app}, constant answers: 8 clients × 1"] = outcome.figures()
    for name, batch in bodies:
        for clients in (1, 8):
            rate = figures[f"{name}: {clients} clients × {batch}"]["per_second"]
            alone = figures[f"{name}: in process, {batch}"]["per_second"]
            figures[f"{name} / in process: {clients} clients × {batch}"] = round(rate / alone, 2)
    figures["plan"] = str(choice.plan).splitlines()[-1] if choice.plan is None else choice.message
    return f"search of {args.rows:,} × {args.dim}", figures


def in_process(index: Index, queries: Any, plan: Any, batch: int, seconds: float) -> dict[str, float]:
    """Queries per second of ``Index.search``, called in a loop; latencies are those of a call."""
    index.search(queries[:batch], plan=plan)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        at = len(times) * batch % len(queries)
        start = time.perf_counter()
        index.search(queries[at : at + batch], plan=plan)
        times.append(time.perf_counter() - start)
    return Outcome(sum(times), times).figures(batch)


def search_requests(queries: Any, plan: Any, batch: int) -> list[bytes]:
    """Requests with ``batch`` queries each, as base64."""
    how = {} if plan is None else {"plan": plan.to_dict()}
    return [request("/v1/indexes/idx/search", {"vector": encoded(queries[at : at + batch]), **how})
            for at in range(0, len(queries), batch)]  # fmt: skip


def load(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Half of the sustained rate, then 8 times the rate: accepted latencies, refusals and memory."""
    inputs, figures, port = texts(2048, args.seed), dict[str, Any](), free_port()
    make = asks("/v1/embeddings", "m", inputs, 1, None)
    command = [*_MATRYO, f"m={args.model}", "--port", str(port)]
    with server(command, port, "/health/ready"):   # it refuses none of these
        rated = closed_loop(port, make, 8, 8).figures()["per_second"]
    figures["rated"] = {"per_second": rated}
    with server([*command, "--wait", str(args.wait)], port, "/health/ready") as pid:
        calm = open_loop(port, make, rated / 2, 15)
        figures["half of the rate"] = calm.figures() | {"statuses": calm.statuses}
        before, peak, ending = resident(pid), [0.0], threading.Event()

        def watch() -> None:
            while not ending.wait(0.5):
                peak[0] = max(peak[0], resident(pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        outcome = open_loop(port, make, 8 * rated, args.seconds)
        ending.set()
        watcher.join()
        ratio = outcome.figures()["p99"] / figures["half of the rate"]["p99"]
        figures["8 times the rate"] = outcome.figures() | {
            "statuses": outcome.statuses,
            "p99 / unloaded p99": round(ratio, 2),
            "seconds": args.seconds,
            "MB before": round(before),
            "MB at most": round(peak[0]),
            "MB after": round(resident(pid)),
        }
        figures["after"] = open_loop(port, make, rated / 2, 5).figures()
    return f"load of {args.model.name}, --wait {args.wait:g}", figures


if __name__ == "__main__":
    main()
