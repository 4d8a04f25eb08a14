"""A real server process: hostile connections, signals, kills, and several workers. Everything is on loopback."""

import json
import signal
import socket
import threading
import time

from matryo import Index

V = [0.5] * 16


def raw(server, data, timeout=5.0):
    """Send bytes, and read until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as connection:
        parts = []
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                parts.append(part)
        except OSError:
            pass
        return b"".join(parts)


def post(path, body, length=None, more=""):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def test_hostile_connections_are_refused_and_the_server_lives(serve, index_folder):
    server = serve("--index", index_folder, "--idle", "1", "--quiet", "--connections", "40")
    path = "/v1/indexes/idx/search"
    assert raw(server, post(path, b"", length=10**9)).startswith(b"HTTP/1.1 413")
    assert raw(
        server, b"GET /v1/indexes/..%2f..%2fetc/passwd HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    ).startswith(b"HTTP/1.1 404")
    assert raw(server, post(path, b"\xff\xfe{", more="connection: close\r\n")).startswith(b"HTTP/1.1 400")
    assert raw(server, post(path, b"[" * 200_000, more="connection: close\r\n")).startswith(b"HTTP/1.1 400")
    assert b"HTTP/1.1 200" not in raw(server, b"\x16\x03\x01 not http at all\r\n\r\n")
    assert b" 200 " not in raw(server, b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 200_000)  # a head without an end
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]  # slow-loris
    for one in slow[:5]:
        one.sendall(b"GET /v1/indexes HTTP/1.1\r\nx:")
    for one in slow[5:]:
        one.sendall(post(path, b'{"vec', length=100))  # a body that stops
    half = socket.create_connection(("127.0.0.1", server.port))
    half.sendall(post(path, json.dumps({"vector": V}).encode()))
    half.shutdown(socket.SHUT_WR)
    assert server.ask("GET", "/health/ready").status == 200  # nobody waits for them
    begin = time.monotonic()
    for one in slow:
        one.settimeout(5)
        while one.recv(65536):
            pass
        one.close()
    assert time.monotonic() - begin < 4
    half.close()
    many = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(80)]  # more than it allows
    for one in many:
        one.close()
    time.sleep(0.2)
    assert server.ask("POST", path, {"vector": V}).status == 200
    assert server.process.poll() is None


def test_a_signal_finishes_accepted_requests_and_releases_the_index(serve, index_folder):
    server = serve("--index", index_folder, "--writable")
    lines = b"".join(json.dumps({"id": f"x{n}", "vector": V}).encode() + b"\n" for n in range(5000))
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.ask("POST", "/v1/indexes/idx/load", lines)))
    thread.start()
    time.sleep(0.05)
    log = server.stop()
    thread.join()
    assert server.process.returncode == 0
    if answers[0].status == 200 and b'"done":true' in answers[0].body:
        with Index.open(index_folder, writable=True) as index:  # the lock is free
            assert len(index) == 5400
    assert all("x0" not in json.dumps(line) for line in log)


def test_a_reload_by_signal_keeps_serving(serve, index_folder):
    server = serve("--index", index_folder)
    with Index.open(index_folder, writable=True) as index:  # another process writes; the reader sees the commit
        index.delete(["r0"])
    assert server.ask("GET", "/v1/indexes/idx").json["count"] == 399
    server.process.send_signal(signal.SIGHUP)
    for _ in range(50):
        if server.ask("GET", "/v1/indexes").status == 200:
            time.sleep(0.02)
    assert any(line["event"] == "reloaded" for line in server.stop())


def test_several_processes_share_an_index_and_one_of_them_writes(serve, index_folder):
    key = "a-key-of-this-test-alone"
    server = serve("--index", index_folder, "--writable", "--workers", "2", "--quiet", env={"MATRYO_API_KEYS": key})

    def ask(method, path, body=None, **headers):
        return server.ask(method, path, body, {"authorization": f"Bearer {key}", **headers})

    for number in range(12):  # whichever process answers, the row is there
        answer = ask("POST", "/v1/indexes/idx/upsert", {"ids": [f"w{number}"], "vectors": [V]})
        for _ in range(40):
            if answer.status != 503:  # the first process was still starting
                break
            time.sleep(0.1)
            answer = ask("POST", "/v1/indexes/idx/upsert", {"ids": [f"w{number}"], "vectors": [V]})
        assert answer.json["count"] == 401 + number, answer.body
        assert ask("POST", "/v1/indexes/idx/get", {"ids": [f"w{number}"]}).status == 200
    lines = b"".join(json.dumps({"id": f"x{n}", "vector": V}).encode() + b"\n" for n in range(2500))
    for _ in range(4):
        answer = ask("POST", "/v1/indexes/idx/load", lines, **{"content-type": "application/x-ndjson"})
        assert json.loads(answer.body.splitlines()[-1]) == {"committed": 2500, "done": True}
    bad = ask("POST", "/v1/indexes/idx/delete", {"ids": ["nobody"]})
    assert (bad.status, bad.json["error"]["code"]) == (404, "id_not_found")
    for _ in range(6):   # whichever process answers, it has the figures of both
        assert 'route="/v1/indexes/{name}/upsert",status="200"} 12' in ask("GET", "/metrics").body.decode()
    server.stop()
    assert server.process.returncode == 0


def test_a_server_for_others_needs_keys(index_folder):
    from matryo.cli import main

    assert main(["serve", "--index", str(index_folder), "--host", "0.0.0.0", "--port", "0"]) == 1


def test_what_cannot_be_served_is_said_before_anything_is_opened(index_folder, tmp_path, capsys):
    from matryo.cli import main

    (tmp_path / "keys").write_text(f"alice {'a' * 20}\n")
    (tmp_path / "keys").chmod(0o644)
    index = ["--index", str(index_folder)]
    for words, said in (
        ([str(index_folder)], f"pass --index {index_folder}"),
        ([*index, "--port", "65536"], "a port is from 1 to 65535"),
        ([*index, "--keys", str(tmp_path / "keys"), "--port", "-1"], "warning: other users can read the keys: chmod"),
    ):
        assert main(["serve", *words]) == 1
        assert said in capsys.readouterr().err
