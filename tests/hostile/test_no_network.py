"""The guard of conftest.py sees every connection, so that each test proves that its calls need no network."""

import socket
import urllib.request

import pytest


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org"])
def test_the_guard_sees_and_refuses_connections(host, connections):
    with pytest.raises(ConnectionRefusedError, match=host):
        socket.create_connection((host, 80), timeout=1)
    with pytest.raises(OSError, match=host):
        urllib.request.urlopen(f"http://{host}/", timeout=1)
    assert len(connections) == 2
    connections.clear()   # else this test would fail


def test_a_connection_within_the_machine_is_allowed(connections):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    assert connections == []
