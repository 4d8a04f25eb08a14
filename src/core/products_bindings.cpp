// Rows in product codes as a class of the Python module.
#include "bindings.h"

namespace matryo {
namespace {

constexpr int kMostBytes = 1 << 15;   // Σ of as many int16 fits in int32

class PyProducts {
 public:
  PyProducts(In<uint8_t, 2> codes, In<float, 1> factors, In<float, 1> offsets)
      : codes_(codes), factors_(factors), offsets_(offsets) {
    int64_t count = rows_of(codes), bytes = columns_of(codes);
    require(bytes > 0 && bytes <= kMostBytes, "rows must have 1 … 32768 bytes");
    require(count < kNoRow, "there must be fewer than 2^32 - 1 rows");
    require(rows_of(factors) == count && rows_of(offsets) == count, "factors and offsets must have one entry per row");
    view_ = ProductRows{codes.data(), factors.data(), offsets.data(), count, static_cast<int>(bytes)};
  }

  void search(In<int16_t, 2> tables, In<double, 1> units, In<double, 1> shifts, OptionalMask mask, Out<int64_t, 2> rows,
              Out<float, 2> scores, int threads) const {
    int64_t count = rows_of(tables), k = columns_of(rows), *found = rows.data();
    float* best = scores.data();
    require(columns_of(tables) == 256 * view_.bytes, "tables must have 256 entries per byte of the rows");
    require(rows_of(units) == count && rows_of(shifts) == count, "units and shifts must have one entry per query");
    require(rows_of(rows) == count && rows_of(scores) == count && columns_of(scores) == k && k > 0,
            "rows and scores must have one line per query");
    require(!mask || rows_of(*mask) == view_.count, "a mask must have one entry per row");
    Mask bytes = mask ? reinterpret_cast<Mask>(mask->data()) : nullptr;
    nb::gil_scoped_release release;
    share_queries(count, threads, 1, [&](int64_t first, int64_t some) {
      ProductQueries part{tables.data() + first * 256 * view_.bytes, units.data() + first, shifts.data() + first};
      kernels().search_products(view_, part, some, bytes, k, found + first * k, best + first * k);
    });
  }

  void sums(In<float, 2> tables, Out<float, 1> out) const {
    require(rows_of(tables) == view_.bytes && columns_of(tables) == 256, "tables must have 256 entries per byte");
    require(rows_of(out) == view_.count, "there must be one sum per row");
    nb::gil_scoped_release release;
    kernels().sum_products(view_, tables.data(), out.data());
  }

 private:
  In<uint8_t, 2> codes_;   // keep the arrays alive
  In<float, 1> factors_, offsets_;
  ProductRows view_;
};

}   // namespace

void bind_products(nb::module_& m) {
  nb::class_<PyProducts>(m, "Products")
      .def(nb::init<In<uint8_t, 2>, In<float, 1>, In<float, 1>>(), "codes"_a.noconvert(), "factors"_a.noconvert(),
           "offsets"_a.noconvert())
      .def("search", &PyProducts::search, "tables"_a.noconvert(), "units"_a.noconvert(), "shifts"_a.noconvert(),
           "mask"_a.noconvert().none(), "rows"_a.noconvert(), "scores"_a.noconvert(), "threads"_a)
      .def("sums", &PyProducts::sums, "tables"_a.noconvert(), "out"_a.noconvert());
}

}   // namespace matryo
