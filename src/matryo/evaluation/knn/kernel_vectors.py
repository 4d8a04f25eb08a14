"""Vector instructions of the compiled search, written out because LLVM does not vectorise such a loop.

Each function is a few machine instructions. Arrays are contiguous and of any shape; offsets count items from the start.
numba does not check this file for changes: ``kernel.py`` must change when this file does.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001
# The types and rules are numba's: an intrinsic must name the arguments that its code is made for.

from __future__ import annotations

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model


def _has(feature):
    # The processor that numba compiles for, which may be configured to differ from this one.
    if config.CPU_FEATURES is not None:
        return f"+{feature}" in config.CPU_FEATURES.split(",")
    return config.CPU_NAME is None and binding.get_host_cpu_features().get(feature, False)


# Rows fill two registers. The sums, the rows and a query then fit the 32 registers of AVX-512, or the 16 of AVX2.
LANES, QUERIES = (32, 12) if _has("avx512bw") else (16, 6)
BLOCK = 8   # rows scored at a time where most are promising

_int, _float = ir.IntType(32), ir.FloatType()


class _Bundle(types.Type):
    """``count`` vectors of ``LANES`` numbers, in registers."""

    def __init__(self, count, number):
        self.count, self.vector = count, ir.VectorType(number, LANES)
        super().__init__(name=f"{count}x{LANES}x{number}")


@register_model(_Bundle)
class _BundleModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.ArrayType(kind.vector, kind.count))


_sums, _dot, _dots = _Bundle(QUERIES, _int), _Bundle(1, _float), _Bundle(BLOCK, _float)


def _address(context, builder, kind, array, offset):
    # Plain pointers: the offset counts items from the start of a contiguous array of any shape. The views of numba
    # count references, and threads that count one array wait for each other.
    return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])


def _load(builder, address, kind):
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=4)


def _load_some(builder, address, count, kind):
    # Loads the first ``count`` numbers, at most LANES, and zeros for the rest, whose memory is not accessed.
    places = ir.Constant(ir.VectorType(_int, LANES), list(range(LANES)))
    mask = builder.icmp_signed("<", places, _spread(builder, builder.trunc(count, _int)))
    pointer = builder.bitcast(address, kind.as_pointer())
    form = ir.FunctionType(kind, [pointer.type, _int, mask.type, kind])
    some = cgutils.get_or_insert_function(builder.module, form, f"llvm.masked.load.v{LANES}f32.p0")
    return builder.call(some, [pointer, ir.Constant(_int, 4), mask, ir.Constant(kind, None)])


def _spread(builder, number):
    empty = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(_int, 0))
    return builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(_int, LANES), None))


def _pick(builder, vector, other, places):
    return builder.shuffle_vector(vector, other, ir.Constant(ir.VectorType(_int, len(places)), places))


def _multiply_pairs(builder, words, others):
    # The sum of the products of the low and of the high halves of every two words. With VNNI, LLVM fuses it with the
    # addition that follows, but does not generate this instruction by itself.
    if _has("avx512bw"):
        count, name = 16, "llvm.x86.avx512.pmaddw.d.512"
    elif _has("avx2"):
        count, name = 8, "llvm.x86.avx2.pmadd.wd"
    else:
        half = ir.Constant(words.type, [16] * LANES)
        high = [builder.ashr(some, half) for some in (words, others)]
        low = [builder.ashr(builder.shl(some, half), half) for some in (words, others)]
        return builder.add(builder.mul(*low), builder.mul(*high))
    halves = ir.VectorType(ir.IntType(16), 2 * count)
    form = ir.FunctionType(ir.VectorType(_int, count), [halves, halves])
    multiply, parts = cgutils.get_or_insert_function(builder.module, form, name), []
    for places in (list(range(count)), list(range(count, LANES))):
        part = [builder.bitcast(_pick(builder, some, some, places), halves) for some in (words, others)]
        parts.append(builder.call(multiply, part))
    return _pick(builder, *parts, list(range(LANES)))


def _zeros(kind):
    @intrinsic
    def zeros(_typing):
        """Sums of zero."""
        return kind(), lambda *_: ir.Constant(ir.ArrayType(kind.vector, kind.count), None)

    return zeros


no_sums, no_dot, no_dots = _zeros(_sums), _zeros(_dot), _zeros(_dots)


@intrinsic
def add_pairs(_typing, queries, at, panels, row, sums):
    """Add the products of two columns, of all ``QUERIES`` × ``LANES``: a word holds both columns of one vector."""

    def emit(context, builder, signature, args):
        rows = _load(builder, _address(context, builder, signature.args[2], *args[2:4]), sums.vector)
        total = args[4]
        for i in range(QUERIES):
            at = builder.add(args[1], ir.Constant(args[1].type, i))
            word = builder.load(_address(context, builder, signature.args[0], args[0], at))
            both = _multiply_pairs(builder, _spread(builder, word), rows)
            total = builder.insert_value(total, builder.add(builder.extract_value(total, i), both), i)
        return total

    return _sums(queries, types.intp, panels, types.intp, _sums), emit


@intrinsic
def find_hopeful(_typing, sums, reach, row, limits, slacks, slot, hopeful, at, stride):
    """Store for each query a bit per row whose sum is above ``limit * reach - slack``, or whose reach is NaN."""

    def emit(context, builder, signature, args):
        vector = ir.VectorType(_float, LANES)
        reached = _load(builder, _address(context, builder, signature.args[1], *args[1:3]), vector)
        for i in range(QUERIES):
            one = ir.Constant(args[5].type, i)
            place = [builder.add(args[5], one), builder.add(args[7], builder.mul(args[8], one))]
            limit, slack = (
                _spread(builder, builder.load(_address(context, builder, signature.args[j], args[j], place[0])))
                for j in (3, 4)
            )
            least = builder.fsub(builder.fmul(limit, reached, flags=("contract",)), slack, flags=("contract",))
            above = builder.fcmp_unordered(">", builder.sitofp(builder.extract_value(args[0], i), vector), least)
            bits = builder.zext(builder.bitcast(above, ir.IntType(LANES)), ir.IntType(32))
            builder.store(bits, _address(context, builder, signature.args[6], args[6], place[1]))
        return context.get_dummy_value()

    slots = types.intp
    return types.none(_sums, reach, slots, limits, slacks, slots, hopeful, slots, slots), emit


@intrinsic
def nonzero(_typing, words, at):
    """A bit per word that is not zero, of ``LANES`` words from ``at`` on."""

    def emit(context, builder, signature, args):
        vector = ir.VectorType(_int, LANES)
        some = _load(builder, _address(context, builder, signature.args[0], *args), vector)
        bits = builder.icmp_unsigned("!=", some, ir.Constant(vector, None))
        return builder.zext(builder.bitcast(bits, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(words, types.intp), emit


@intrinsic
def union(_typing, words, at):
    """The bits that are set in any of ``LANES`` words from ``at`` on."""

    def emit(context, builder, signature, args):
        vector = ir.VectorType(_int, LANES)
        some = _load(builder, _address(context, builder, signature.args[0], *args), vector)
        form = ir.FunctionType(_int, [vector])
        either = cgutils.get_or_insert_function(builder.module, form, f"llvm.vector.reduce.or.v{LANES}i32")
        return builder.zext(builder.call(either, [some]), ir.IntType(64))

    return types.uint64(words, types.intp), emit


@intrinsic
def above(_typing, scores, at, bar):
    """A bit per score above the bar, of ``LANES`` scores from ``at`` on."""

    def emit(context, builder, signature, args):
        vector = ir.VectorType(_float, LANES)
        some = _load(builder, _address(context, builder, signature.args[0], *args[:2]), vector)
        bits = builder.fcmp_ordered(">", some, _spread(builder, args[2]))
        return builder.zext(builder.bitcast(bits, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(scores, types.intp, types.float32), emit


@intrinsic
def add_products(_typing, queries, at, rows, row, stride, count, sums):
    """Add the products of ``count`` columns, at most ``LANES``, of one query and of rows that are ``stride`` apart."""

    def emit(context, builder, signature, args):
        query = _load_some(builder, _address(context, builder, signature.args[0], *args[:2]), args[5], sums.vector)
        total = args[6]
        for i in range(sums.count):
            place = builder.add(args[3], builder.mul(args[4], ir.Constant(args[4].type, i)))
            address = _address(context, builder, signature.args[2], args[2], place)
            product = builder.fmul(query, _load_some(builder, address, args[5], sums.vector), flags=("contract",))
            added = builder.fadd(builder.extract_value(total, i), product, flags=("contract",))
            total = builder.insert_value(total, added, i)
        return total

    places = (types.intp,) * 3
    return sums(queries, types.intp, rows, *places, sums), emit


def _fold(builder, vectors):
    # The sum over the lanes of each vector, by repeated halving. While there are several vectors, two are merged.
    width = size = LANES
    while width > 1:
        width //= 2
        low = [i for i in range(min(len(vectors), 2) * size) if i // width % 2 == 0]
        high, others = [i + width for i in low], vectors[1::2] or vectors
        pairs = zip(vectors[::2], others, strict=True)
        vectors = [builder.fadd(_pick(builder, *two, low), _pick(builder, *two, high)) for two in pairs]
        size = len(low)
    return vectors[0]


@intrinsic
def fold(_typing, sums):
    """The sum of the lanes."""

    def emit(_context, builder, _signature, args):
        total = _fold(builder, [builder.extract_value(args[0], 0)])
        return builder.extract_element(total, ir.Constant(_int, 0))

    return types.float32(sums), emit


@intrinsic
def store_folds(_typing, sums, scales, row, scores, at):
    """Store the scores of a block of rows: the sum of the lanes of each, times its scale."""

    def emit(context, builder, signature, args):
        total = _fold(builder, [builder.extract_value(args[0], i) for i in range(BLOCK)])
        scale = _load(builder, _address(context, builder, signature.args[1], *args[1:3]), total.type)
        address = _address(context, builder, signature.args[3], *args[3:])
        builder.store(builder.fmul(total, scale), builder.bitcast(address, total.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(sums, scales, types.intp, scores, types.intp), emit


@intrinsic
def prefetch(_typing, array, at):
    """Prefetch ``array[at]``."""

    def emit(context, builder, signature, args):
        pointer = builder.bitcast(_address(context, builder, signature.args[0], *args), ir.IntType(8).as_pointer())
        form = ir.FunctionType(ir.VoidType(), [pointer.type, _int, _int, _int])
        ask = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        builder.call(ask, [pointer, *(ir.Constant(_int, number) for number in (0, 2, 1))])
        return context.get_dummy_value()

    return types.none(array, types.intp), emit


@intrinsic
def lowest_bit(_typing, bits):
    """The position of the lowest set bit; at least one must be set."""

    def emit(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit


@intrinsic
def count_bits(_typing, bits):
    """The number of set bits."""
    return types.int64(types.uint64), lambda _context, builder, _signature, args: builder.ctpop(args[0])
