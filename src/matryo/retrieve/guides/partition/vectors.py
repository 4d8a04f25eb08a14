"""Vector instructions for the search of partitions, in addition to :mod:`matryo.retrieve.engines.compiled.kernels`.

They prefetch memory, compare the scores of a tile with a bar, and multiply sixteen numbers of a row in full precision
at a time; float16 is widened as it is loaded.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001
# The types and rules are numba's: an intrinsic must name the arguments that its code is made for.

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from matryo.retrieve.engines.compiled.kernels import FLOATS, INTS, LANES, SUMS, bits, load, spread, widen


class _Products(types.Type):
    """``LANES`` floats, in registers."""


_products = _Products(name=f"float32x{LANES}")


@register_model(_Products)
class _ProductsModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, FLOATS)


def _call(builder, name, result, *args, **options):
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args, **options)


@intrinsic
def fetch(_typing, address):
    """Prefetch the cache line at an address, which need not be valid.

    The line goes to the L2 cache, which accepts many more requests at a time than L1.
    """

    def emit(context, builder, _signature, args):
        start = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        # For reading, into the L2 cache, data.
        _call(builder, "llvm.prefetch.p0i8", ir.VoidType(), start, *(ir.Constant(ir.IntType(32), n) for n in (0, 2, 1)))
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def graded(_typing, high, low, scale, shift, adjust, place, times, scores, at, bar):
    """Store the scores of dots ``128 · high + low``; returns a bit per score above the bar.

    A score is ``scale · dot + shift``, times or plus the value of ``adjust`` for the row. NaN marks an empty place.
    """

    def emit(context, builder, signature, args):
        # As floats: with many columns, the integer sum would overflow 32 bits.
        upper = builder.fmul(builder.sitofp(args[0], FLOATS), ir.Constant(FLOATS, [128.0] * LANES))
        both = builder.fadd(upper, builder.sitofp(args[1], FLOATS))
        made = builder.fmul(both, spread(builder, args[2], FLOATS))
        made = builder.fadd(made, spread(builder, args[3], FLOATS))
        other = load(context, builder, signature.args[4], args[4], args[5], FLOATS, align=4)
        made = builder.select(args[6], builder.fmul(made, other), builder.fadd(made, other))
        start = builder.gep(context.make_array(signature.args[7])(context, builder, args[7]).data, [args[8]])
        builder.store(made, builder.bitcast(start, FLOATS.as_pointer()), align=4)
        return bits(builder, builder.fcmp_ordered(">", made, spread(builder, args[9], FLOATS)))

    given = (SUMS, SUMS, types.float32, types.float32, adjust, types.intp, types.boolean, scores, types.intp)
    return types.uint64(*given, types.float32), emit


@intrinsic
def reaching(_typing, scores, at, bar):
    """A bit per score of ``LANES`` that is not below the bar; 0 for NaN."""

    def emit(context, builder, signature, args):
        found = load(context, builder, signature.args[0], args[0], args[1], FLOATS, align=4)
        return bits(builder, builder.fcmp_ordered(">=", found, spread(builder, args[2], FLOATS)))

    return types.uint64(scores, types.intp, types.float32), emit


@intrinsic
def no_products(_typing):
    """A vector of zeros."""
    return _products(), lambda *_: ir.Constant(FLOATS, None)


def _both(context, builder, signature, args):
    half = signature.args[0].dtype == types.uint16
    kind = ir.VectorType(ir.IntType(16), LANES) if half else FLOATS
    read = load(context, builder, signature.args[0], args[0], args[1], kind)
    other = load(context, builder, signature.args[2], args[2], args[3], FLOATS, align=4)
    return widen(builder, read, FLOATS, INTS) if half else read, other


@intrinsic
def add_product(_typing, row, at, vector, first, sums):
    """Add the products of ``LANES`` numbers of a row (float32, or the bits of float16) and of a vector."""

    def emit(context, builder, signature, args):
        read, other = _both(context, builder, signature, args)
        return _call(builder, f"llvm.fma.v{LANES}f32", FLOATS, read, other, args[4])

    return _products(row, types.intp, vector, types.intp, _products), emit


@intrinsic
def add_square(_typing, row, at, vector, first, sums):
    """Add the squared differences of ``LANES`` numbers of a row and of a vector."""

    def emit(context, builder, signature, args):
        apart = builder.fsub(*_both(context, builder, signature, args))
        return _call(builder, f"llvm.fma.v{LANES}f32", FLOATS, apart, apart, args[4])

    return _products(row, types.intp, vector, types.intp, _products), emit


@intrinsic
def total_product(_typing, sums, others):
    """The sum over the lanes of two vectors."""

    def emit(_context, builder, _signature, args):
        number, zero = ir.FloatType(), ir.Constant(ir.FloatType(), 0.0)
        both = builder.fadd(*args)
        return _call(builder, f"llvm.vector.reduce.fadd.v{LANES}f32", number, zero, both, fastmath=("reassoc",))

    return types.float32(_products, _products), emit
