"""Serve models and indexes over HTTP: OpenAI's embeddings API, and search.

MODEL is a run folder, or a folder of sentence-transformers, such as `matryo export` writes. MODEL and --index may be
repeated, and named: NAME=PATH. The server listens on this machine only, unless --host says otherwise and there are API
keys, in a file (--keys) or in the environment variable MATRYO_API_KEYS. SIGTERM ends it after the accepted requests,
SIGHUP loads the models again.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.serve.http.keys import VARIABLE, Keys
from matryo.serve.limits import Limits
from matryo.serve.names import Sources, named

if TYPE_CHECKING:
    import socket

    from matryo.serve.run import Address

__all__ = ["add_arguments", "run"]

_HELP = {
    "items": "inputs per embeddings request",
    "tokens": "tokens per embeddings request, before truncation",
    "images": "images per request",
    "bytes": "bytes of a request body",
    "memory": "bytes of all request bodies held at a time",
    "queries": "queries per search",
    "hits": "hits per search: queries × k",
    "rows": "rows per upsert, delete or get",
    "wait": "seconds that a request may wait for its turn; beyond it gets 429",
    "step": "seconds that one batch should take",
    "timeout": "seconds for an answer; then 504",
    "idle": "seconds for the head of a request, and for each part of its body",
    "connections": "open connections per process",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, the indexes, the address and the limits."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a run folder or a sentence-transformers folder, or "
                        "NAME=PATH")  # fmt: skip
    parser.add_argument("--index", action="append", default=[], metavar="FOLDER", help="an index, or NAME=FOLDER")
    parser.add_argument("--shards", nargs="+", default=[], metavar="URL", help="route to the servers of all shards of "
                        "an index, in the order of their numbers; URL|URL for replicas; NAME=URL first to name it "
                        "[index]")  # fmt: skip
    parser.add_argument("--shard-timeout", type=float, default=5.0, metavar="X", help="seconds for the answer of a "
                        "shard [5]")  # fmt: skip
    parser.add_argument("--hedge", type=float, metavar="X", help="seconds after which another replica gets the "
                        "request, too; 0 for never [the 95th percentile of recent answers]")  # fmt: skip
    parser.add_argument("--writable", action="store_true", help="allow changes to the indexes, as their only writer")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on [127.0.0.1]")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="port to listen on; 0 chooses one [8080]")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="API keys, one per line: NAME KEY, then rate=N "
                        "or read-only")  # fmt: skip
    parser.add_argument("--no-keys", action="store_true", help="listen beyond this machine without API keys")
    parser.add_argument("--cors", action="append", default=[], metavar="ORIGIN", help="a web origin whose pages may "
                        "call the API [none]")  # fmt: skip
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a further name that clients "
                        "use for this machine; checked only without keys and --host")  # fmt: skip
    parser.add_argument("--show", metavar="FIELD,…", help="payload fields on the explorer page: texts, the title "
                        "first, and one of pictures [found in the payloads]")  # fmt: skip
    parser.add_argument("--group", metavar="FIELD", default="", help="the payload field that colours the map of the "
                        "page [found in the payloads]")  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes; the first one writes [1]")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads that share a batch of searches [1]"
    )
    parser.add_argument("--device", default="auto", metavar="D", help="cpu, cuda, mps or auto, for models [auto]")
    parser.add_argument("--quiet", action="store_true", help="log errors only")
    parser.set_defaults(credits=())   # of the drawings of `matryo demo --serve`
    limits = parser.add_argument_group("limits")
    for field in fields(Limits):
        kind = int if isinstance(field.default, int) else float
        limits.add_argument(f"--{field.name}", type=kind, default=field.default, metavar="N" if kind is int else "X",
                            help=f"{_HELP[field.name]} [{field.default:,}]")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Serve until a signal."""
    from matryo.serve.run import Address, listen
    from matryo.serve.workers import run_workers

    if not args.shards:
        Sources(named(args.models, "model"), named(args.index, "index")).check()
    address, keys = Address(args.host, args.port), Keys.read(args.keys)
    if not address.local and not keys and not args.no_keys:
        rule = "a server that others can reach needs API keys"
        cure = f"pass --keys FILE or set {VARIABLE}; --no-keys if the network is trusted"
        raise InputError(rule, got=f"--host {args.host}", cure=cure)
    if args.keys is not None and args.keys.stat().st_mode & stat.S_IROTH:
        print(f"matryo: warning: other users can read the keys: chmod o-r {args.keys}", file=sys.stderr)
    if args.workers < 1 or (args.workers > 1 and not hasattr(os, "fork")):
        cure = "pass --workers 1" if args.workers > 1 else "pass 1 or more"
        raise InputError("--workers needs a system with fork, and at least 1", got=args.workers, cure=cure)
    shared = listen(address)
    if args.workers == 1:
        _serve(args, address, [shared])
    else:
        _announce(args, address, shared)
        run_workers(
            args.workers, shared, lambda number, sockets, folder: _serve(args, address, sockets, number, folder)
        )


def _serve(
    args: argparse.Namespace, address: Address, sockets: list[socket.socket], number: int = 0,
    folder: Path | None = None,
) -> None:  # fmt: skip
    """Run one process; ``folder`` holds the private sockets of all of them."""
    from matryo.serve import Routing, Show, app
    from matryo.serve.run import run_service
    from matryo.serve.workers import connect

    if folder is not None and args.models:   # the processes share the cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // args.workers)))
    limits = Limits(**{field.name: getattr(args, field.name) for field in fields(Limits)})
    writable = args.writable and number == 0
    service = app(
        named(args.models, "model"), named(args.index, "index"), keys=args.keys, limits=limits, writable=writable,
        origins=args.cors, device=args.device, threads=args.threads, quiet=args.quiet, alone=True,
        show=Show(tuple((args.show or "").split(",")) if args.show else (), args.group, args.credits),
        shards=_shards(args), routing=Routing(args.shard_timeout, args.hedge),
    )  # fmt: skip
    if address.local and not service.keys:
        service.hosts = frozenset(name.lower() for name in args.allow_host)
    if folder is not None:
        connect(service, number, args.workers, folder, writable=args.writable)

    def started() -> None:
        if folder is None:
            _announce(args, address, sockets[0])

    run_service(service, sockets, started)


def _shards(args: argparse.Namespace) -> dict[str, list[str]]:
    """The URLs of --shards under the name of their index."""
    if not args.shards:
        return {}
    name, equals, first = args.shards[0].partition("=")
    if not equals or "/" in name:
        return {"index": args.shards}
    return {name: [first, *args.shards[1:]]}


def _announce(args: argparse.Namespace, address: Address, shared: socket.socket) -> None:
    host = f"[{address.host}]" if ":" in address.host else address.host
    served = dict.fromkeys([*named(args.models, "model"), *named(args.index, "index"), *_shards(args)])
    print(f"serving {', '.join(served)} on http://{host}:{shared.getsockname()[1]}/", flush=True)
    sys.stdout.flush()
