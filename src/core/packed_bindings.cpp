// Rows in packed codes as a class of the Python module.
#include "bindings.h"

namespace matryo {
namespace {

constexpr int kMostColumns = 8192;   // of 4 bits; see codes.h

class PyPacked {
 public:
  PyPacked(In<uint8_t, 2> tiles, In<float, 1> scales, In<float, 1> offsets, int64_t count, int dim, int bits)
      : tiles_(tiles), scales_(scales), offsets_(offsets) {
    require(bits == 1 || bits == 4 || bits == 8, "bits must be 1, 4 or 8");
    require(dim > 0 && dim <= kMostColumns, "dim must be in 1 … 8192");
    require(count >= 0 && count < kNoRow, "there must be fewer than 2^32 - 1 rows");
    int64_t columns = 32 / bits, words = (dim + columns - 1) / columns, high = (count + kTileRows - 1) / kTileRows;
    require(rows_of(tiles) == high && columns_of(tiles) == words * 64, "tiles must have the rows and the columns");
    require(rows_of(scales) == high * kTileRows && rows_of(offsets) == high * kTileRows,
            "scales and offsets must have one entry per row of the tiles");
    view_ = PackedRows{tiles.data(), scales.data(), offsets.data(), count, dim, bits};
  }

  void search(In<float, 2> queries, OptionalMask mask, Out<int64_t, 2> rows, Out<float, 2> scores, int threads) const {
    int64_t count = rows_of(queries), k = columns_of(rows), *found = rows.data();
    float* best = scores.data();
    require(columns_of(queries) == view_.dim, "queries must have the columns of the rows");
    require(rows_of(rows) == count && rows_of(scores) == count && columns_of(scores) == k && k > 0,
            "rows and scores must have one line per query");
    require(!mask || rows_of(*mask) == view_.count, "a mask must have one entry per row");
    Mask bytes = mask ? reinterpret_cast<Mask>(mask->data()) : nullptr;
    nb::gil_scoped_release release;
    share_queries(count, threads, 4, [&](int64_t first, int64_t some) {
      kernels().search_packed(view_, queries.data() + first * view_.dim, some, bytes, k, found + first * k,
                              best + first * k);
    });
  }

  void score(In<float, 2> queries, In<int64_t, 2> rows, Out<float, 2> scores) const {
    int64_t count = rows_of(queries), n = columns_of(rows);
    require(columns_of(queries) == view_.dim, "queries must have the columns of the rows");
    require(rows_of(rows) == count && rows_of(scores) == count && columns_of(scores) == n,
            "rows and scores must have one line per query");
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < count * n; i++)
      require(rows.data()[i] >= 0 && rows.data()[i] < view_.count, "there is no such row");
    kernels().score_packed(view_, queries.data(), count, rows.data(), n, scores.data());
  }

 private:
  In<uint8_t, 2> tiles_;   // keep the arrays alive
  In<float, 1> scales_, offsets_;
  PackedRows view_;
};

}   // namespace

void bind_packed(nb::module_& m) {
  nb::class_<PyPacked>(m, "Packed")
      .def(nb::init<In<uint8_t, 2>, In<float, 1>, In<float, 1>, int64_t, int, int>(), "tiles"_a.noconvert(),
           "scales"_a.noconvert(), "offsets"_a.noconvert(), "count"_a, "dim"_a, "bits"_a)
      .def("search", &PyPacked::search, "queries"_a.noconvert(), "mask"_a.noconvert().none(), "rows"_a.noconvert(),
           "scores"_a.noconvert(), "threads"_a)
      .def("score", &PyPacked::score, "queries"_a.noconvert(), "rows"_a.noconvert(), "scores"_a.noconvert());
}

}   // namespace matryo
