"""A local cluster of Ray, and a bucket of an S3 server that its workers reach: one of each for all tests of a file."""

import os

import pytest


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a real S3 server in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    given = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
             "AWS_DEFAULT_REGION": "us-east-1"}   # fmt: skip
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    import s3fs

    s3fs.S3FileSystem().mkdir("vectors")
    yield "s3://vectors"
    server.stop()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="module")
def cluster(bucket):   # noqa: ARG001 - its workers need the address of the bucket
    from matryo.ray import Cluster

    with Cluster("local", workers=2) as running:
        yield running
