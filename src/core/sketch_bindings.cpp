// The Python class of a sketch: checks its arrays, and searches with it.
#include "bindings.h"

namespace matryo {
namespace {

// codes, tails, dim, error, length
using PyLevel = std::tuple<Any, In<float, 1>, int, double, double>;

class PySketch {
 public:
  PySketch(std::shared_ptr<PyVectors> vectors, In<double, 2> axes, In<double, 1> steps, std::vector<PyLevel> levels,
           std::optional<In<float, 1>> offsets, int exponent)
      : vectors_(std::move(vectors)),
        axes_(axes),
        steps_(steps),
        held_(std::move(levels)),
        offsets_(offsets),
        exponent_(exponent) {
    const Vectors& view = vectors_->view;
    int64_t count = view.count, padded = (count + kTileRows - 1) / kTileRows * kTileRows;
    require(rows_of(axes) == vectors_->columns && columns_of(axes) == rows_of(steps), "axes and steps must fit");
    require(!held_.empty(), "a sketch must have a level");
    require((view.metric == Metric::l2) == offsets.has_value(), "offsets are for L2");
    require(!offsets || rows_of(*offsets) == padded, "offsets must have one entry per row of the tiles");
    int low = 0;
    for (const auto& [codes, tails, dim, error, length] : held_) {
      bool first = low == 0;
      require(dim > low && dim - low <= 512 && (dim - low) % (first ? 4 : 64) == 0,
              "a level must add up to 512 columns: a multiple of 4, after the first of 64");
      require(rows_of(tails) == padded, "tails must have one entry per row of the tiles");
      bool right =
          first ? codes.dtype() == nb::dtype<uint8_t>() && static_cast<int64_t>(codes.size()) == padded * dim
                : codes.dtype() == nb::dtype<int8_t>() && static_cast<int64_t>(codes.size()) == count * (dim - low);
      require(right, "codes must have one entry per row and column");
      levels_.push_back(SketchLevel{codes.data(), tails.data(), low, dim, error, length});
      low = dim;
    }
    require(low == rows_of(steps), "the last level must have all coordinates");
    view_ = Sketch{axes_.data(),
                   steps_.data(),
                   offsets_ ? offsets_->data() : nullptr,
                   levels_.data(),
                   static_cast<int>(levels_.size()),
                   low,
                   padded / kTileRows};
  }

  // Returns −1, or the number of a query that has no score.
  int64_t search(In<float, 2> queries, OptionalMask mask, std::optional<In<double, 1>> bars, Out<int64_t, 2> rows,
                 Out<double, 2> scores, Out<int64_t, 2> left, int threads) {
    vectors_->check_queries(queries, 0);
    vectors_->check_hits(rows_of(queries), rows, scores);
    int64_t levels = view_.level_count, k = columns_of(rows), columns = vectors_->columns;
    require(rows_of(left) == rows_of(queries) && columns_of(left) == levels, "left must have one line per query");
    require(!bars || rows_of(*bars) == rows_of(queries), "bars must have one entry per query");
    Mask bytes = vectors_->mask_of(mask);
    std::atomic<int64_t> bad{-1};
    nb::gil_scoped_release release;
    int64_t count = rows_of(queries), *levels_left = left.data();
    share_queries(count, threads, 4, [&](int64_t first, int64_t some) {
      work_.lend([&](Work* work) {
        int64_t found =
            kernels().search_sketch(vectors_->view, view_, exponent_, bytes, patience_, work,
                                    queries.data() + first * columns, some, k, bars ? bars->data() + first : nullptr,
                                    rows.data() + first * k, scores.data() + first * k, levels_left + first * levels);
        if (found >= 0) bad = first + found;
      });
    });
    if (bad >= 0) return bad;
    for (int64_t first = 0, last = 0; first < count; first = last + 1) {   // the others, as many at a time as possible
      for (last = first; last < count && levels_left[last * levels] < 0; last++) levels_left[last * levels] = 0;
      if (last == first) continue;
      ScanArguments some{
          vectors_->view.levels - 1, false, queries.data() + first * columns, columns, last - first, nullptr, bytes};
      int64_t found = vectors_->search_all(some, vectors_->allowed(bytes), k, rows.data() + first * k,
                                           scores.data() + first * k, threads);
      if (found >= 0) return first + found;
    }
    return -1;
  }

  // Upper bounds of all scores of a query at each level, for tests.
  void bounds(In<float, 1> query, Out<double, 2> bounds) {
    require(rows_of(query) == vectors_->columns, "the query must have the columns of the vectors");
    require(rows_of(bounds) == view_.level_count && columns_of(bounds) == vectors_->view.count,
            "bounds must have one line per level and one column per row");
    work_.lend([&](Work* work) {
      require(kernels().bound_sketch(vectors_->view, view_, exponent_, work, query.data(), bounds.data()),
              "the query has no score");
    });
  }

 private:
  std::shared_ptr<PyVectors> vectors_;
  In<double, 2> axes_;
  In<double, 1> steps_;
  std::vector<PyLevel> held_;
  std::optional<In<float, 1>> offsets_;
  int exponent_;
  std::vector<SketchLevel> levels_;
  Sketch view_;
  Patience patience_;
  Workplace work_{kernels().make_sketch_work, kernels().drop_sketch_work};
};

}   // namespace

void bind_sketch(nb::module_& m) {
  nb::class_<PySketch>(m, "Sketch")
      .def(nb::init<std::shared_ptr<PyVectors>, In<double, 2>, In<double, 1>, std::vector<PyLevel>,
                    std::optional<In<float, 1>>, int>(),
           "vectors"_a, "axes"_a.noconvert(), "steps"_a.noconvert(), "levels"_a, "offsets"_a.noconvert().none(),
           "exponent"_a)
      .def("search", &PySketch::search, "queries"_a.noconvert(), "mask"_a.noconvert().none(),
           "bars"_a.noconvert().none(), "rows"_a.noconvert(), "scores"_a.noconvert(), "left"_a.noconvert(), "threads"_a)
      .def("bounds", &PySketch::bounds, "query"_a.noconvert(), "bounds"_a.noconvert());
}

}   // namespace matryo
