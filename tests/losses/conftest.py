"""One fixture runs every engine there is: Triton on a GPU, or interpreted, in float32 only and slowly, on a CPU."""

import importlib.util

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON and not torch.cuda.is_available():
    from triton.runtime import interpreter

    def multiplied(_, a, b, sums, precision, *_others):
        """The interpreter multiplies the bits of half precision as if they were integers, and sums in it."""
        product = as_single(a, precision) @ as_single(b, precision)
        return interpreter.TensorHandle(sums.data + product.astype(sums.data.dtype), sums.dtype.scalar)

    def as_single(one, precision):
        if one.data.dtype.itemsize == 2 and one.data.dtype.kind == "u":   # how it keeps bfloat16
            return (one.data.astype("u4") << 16).view("f4")
        single = one.data.astype("f4")
        if precision.name == "TF32":   # what tensor cores leave out
            single = (single.view("u4") & 0xFFFFE000).view("f4")
        return single

    interpreter.InterpreterBuilder.create_dot = multiplied
NEEDS_TRITON = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")


@pytest.fixture(scope="session")
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", params=["plain", "chunked", pytest.param("triton", marks=NEEDS_TRITON)])
def engine(request):
    return request.param


@pytest.fixture(scope="session", params=["chunked", pytest.param("triton", marks=NEEDS_TRITON)])
def lean(request):
    """An engine that keeps no scores."""
    return request.param


@pytest.fixture(scope="session")
def precise():
    """The widest dtype of an engine, and how near to float64 it must come."""

    def of(engine):
        return (torch.float32, {"rtol": 2e-4, "atol": 2e-5}) if engine == "triton" else (torch.float64, {})

    return of
