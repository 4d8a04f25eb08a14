// The Python module: checks every shape and bound once, releases the GIL, and calls the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace matryo {

void bind_neighbours(nb::module_& m);   // neighbours_bindings.cpp

namespace {

using OptionalMask = std::optional<In<bool, 1>>;

// Keeps scratch memory between calls: allocating it costs more than the search that fills it.
class Workplace {
 public:
  Workplace(Work* (*make)(), void (*drop)(Work*)) : make_(make), drop_(drop) {}
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  ~Workplace() {
    for (Work* work : idle_) drop_(work);
  }

  template <class Use>
  void lend(Use use) {
    // try_lock: in a child of fork(), a thread that is gone may hold the lock for ever.
    Work* work = nullptr;
    if (std::unique_lock guard(lock_, std::try_to_lock); guard && !idle_.empty()) {
      work = idle_.back();
      idle_.pop_back();
    }
    std::unique_ptr<Work, void (*)(Work*)> held(work != nullptr ? work : make_(), drop_);
    use(held.get());
    if (std::unique_lock guard(lock_, std::try_to_lock); guard) {
      idle_.push_back(held.get());
      held.release();
    }
  }

 private:
  Work* (*make_)();
  void (*drop_)(Work*);
  std::mutex lock_;
  std::vector<Work*> idle_;
};

// Split `count` queries between threads, in parts that are multiples of `group`.
template <class Run>
void share_queries(int64_t count, int threads, int64_t group, Run run) {
  if (threads <= 1 || count <= group) {
    run(0, count);
    return;
  }
  int64_t step = (count + 4 * threads - 1) / (4 * threads);
  step = (step + group - 1) / group * group;
  int64_t parts = (count + step - 1) / step;
  share(parts, threads, [&](int64_t part) {
    int64_t first = part * step;
    run(first, count - first < step ? count - first : step);
  });
}

class PyVectors {
 public:
  PyVectors(int metric, std::vector<Any> blocks, std::vector<Any> picked, In<int64_t, 1> dims, In<float, 2> norms,
            std::vector<Any> codes, std::vector<float> units)
      : held_(std::move(blocks)),
        held_picked_(std::move(picked)),
        held_codes_(std::move(codes)),
        dims_(dims),
        norms_(norms) {
    require(metric >= 0 && metric <= 2, "metric must be 0, 1 or 2");
    view.metric = static_cast<Metric>(metric);
    view.levels = static_cast<int>(dims.shape(0));
    view.dims = dims.data();
    view.count = rows_of(norms);
    view.norms = norms.data();
    require(!held_.empty() && held_.size() == dims.shape(0) && held_picked_.size() == held_.size() &&
                columns_of(norms) == view.levels,
            "blocks, dims and norms must have one entry per dim");
    require(held_codes_.size() == units.size() && held_codes_.size() <= held_.size(), "codes must have one unit each");
    require(view.count < kNoRow, "there must be fewer than 2^32 - 1 rows");
    view.number = held_[0].dtype() == nb::dtype<float>() ? Number::float32 : Number::float16;
    int64_t low = 0;
    for (size_t i = 0; i < held_.size(); i++) {
      int64_t high = dims.data()[i];
      require(high > low && high < (1 << 24), "dims must increase, up to 2^24");
      nb::dlpack::dtype kind = view.number == Number::float32 ? nb::dtype<float>() : nb::dtype<uint16_t>();
      add(blocks_, held_[i], kind, low, high, 1);   // float16 comes as its bits
      add(picked_, held_picked_[i], kind, low, high, 1);
      if (i < held_codes_.size()) add(codes_, held_codes_[i], nb::dtype<int8_t>(), low, high, units[i]);
      low = high;
    }
    columns = low;
    view.blocks = blocks_.data();
    view.picked = picked_.data();
    view.codes = codes_.data();
    view.code_levels = static_cast<int>(codes_.size());
  }

  // Check the arguments of a scan, and fill in the norms of the queries.
  ScanArguments scan(In<float, 2> queries, int level, bool coded, Mask mask, std::vector<float>& lengths,
                     std::vector<float>& scaled) const {
    check_queries(queries, level);
    require(!coded || level < view.code_levels, "there are no codes at this level");
    int64_t count = rows_of(queries), dim = view.dims[level];
    lengths.resize(static_cast<size_t>(count));
    const float* from = queries.data();
    for (int64_t q = 0; q < count; q++) {
      double sum = 0;
      for (int64_t j = 0; j < dim; j++) sum += static_cast<double>(from[q * columns + j]) * from[q * columns + j];
      lengths[static_cast<size_t>(q)] = static_cast<float>(std::sqrt(sum));
    }
    if (coded) {   // a code counts units of its block
      scaled.assign(from, from + count * columns);
      for (int64_t q = 0; q < count; q++)
        for (int b = 0; b <= level; b++)
          for (int j = view.codes[b].low; j < view.codes[b].high; j++)
            scaled[static_cast<size_t>(q * columns + j)] *= view.codes[b].unit;
      from = scaled.data();
    }
    return ScanArguments{level, coded, from, columns, count, lengths.data(), mask};
  }

  void check_queries(const In<float, 2>& queries, int level) const {
    require(columns_of(queries) == columns, "queries must have the columns of the vectors");
    require(level >= 0 && level < view.levels, "there is no such level");
  }

  Mask mask_of(const OptionalMask& mask) const {
    if (!mask) return nullptr;
    require(rows_of(*mask) == view.count, "a mask must have one entry per row");
    return reinterpret_cast<Mask>(mask->data());
  }

  void choose(In<float, 2> queries, int level, bool coded, OptionalMask mask, Out<int64_t, 2> rows, int threads) {
    std::vector<float> lengths, scaled;
    ScanArguments all = scan(queries, level, coded, mask_of(mask), lengths, scaled);
    require(rows_of(rows) == all.count && columns_of(rows) > 0, "rows must have one line per query");
    int64_t wanted = columns_of(rows), *found = rows.data();
    nb::gil_scoped_release release;
    share_queries(all.count, threads, 4, [&](int64_t first, int64_t some) {
      kernels().choose(view, part(all, first, some), wanted, found + first * wanted);
    });
  }

  void search_exact(In<float, 2> queries, int level, OptionalMask mask, Out<int64_t, 2> rows, Out<double, 2> scores,
                    int threads) {
    std::vector<float> lengths, scaled;
    ScanArguments all = scan(queries, level, false, mask_of(mask), lengths, scaled);
    check_hits(all.count, rows, scores);
    int64_t k = columns_of(rows), *found = rows.data();
    double* best = scores.data();
    nb::gil_scoped_release release;
    int64_t allowed = view.count;
    if (all.mask != nullptr) {
      allowed = 0;
      for (int64_t i = 0; i < view.count; i++) allowed += all.mask[i] != 0;
    }
    std::vector<double> exactly(all.queries, all.queries + all.count * columns);
    share_queries(all.count, threads, 4, [&](int64_t first, int64_t some) {
      kernels().search_exact(view, part(all, first, some), allowed, exactly.data() + first * columns, k,
                             found + first * k, best + first * k);
    });
  }

  // Exact search of the rows `among`. Returns the first query that has no score, or −1.
  int64_t search_among(In<float, 2> queries, int level, In<int64_t, 1> among, Out<int64_t, 2> rows,
                       Out<double, 2> scores, int threads) {
    check_queries(queries, level);
    int64_t count = rows_of(queries), listed = rows_of(among), k = columns_of(rows), *found = rows.data();
    check_hits(count, rows, scores);
    double* best = scores.data();
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < listed; i++)
      require(among.data()[i] >= 0 && among.data()[i] < view.count, "there is no such row");
    std::vector<float> scaled(queries.data(), queries.data() + count * columns);
    std::vector<float> lengths(static_cast<size_t>(count));
    std::vector<double> exactly(queries.data(), queries.data() + count * columns);
    for (int64_t q = 0; q < count; q++) {
      const double* query = exactly.data() + q * columns;
      double sum = 0, prefix = 0;
      for (int64_t j = 0; j < columns; j++) {
        sum += query[j] * query[j];
        if (j == view.dims[level] - 1) prefix = sum;
      }
      if (!(sum <= 0x1p124) || (sum == 0 && view.metric == Metric::cosine)) return q;
      if (view.metric == Metric::cosine) {   // by a power of two, which rounds nothing: no product underflows
        int exponent;
        std::frexp(std::sqrt(sum), &exponent);
        for (int64_t j = 0; j < columns; j++) scaled[q * columns + j] = std::ldexp(scaled[q * columns + j], -exponent);
        prefix = std::ldexp(prefix, -2 * exponent);
      }
      lengths[q] = static_cast<float>(std::sqrt(prefix));
    }
    ScanArguments all{level, false, scaled.data(), columns, count, lengths.data(), nullptr, among.data(), listed};
    share_queries(count, threads, 4, [&](int64_t first, int64_t some) {
      kernels().search_exact(view, part(all, first, some), listed, exactly.data() + first * columns, k,
                             found + first * k, best + first * k);
    });
    return -1;
  }

  void exact_scores(In<float, 2> queries, int level, In<int64_t, 2> rows, Out<double, 2> scores) {
    check_queries(queries, level);
    int64_t count = rows_of(queries);
    require(rows_of(rows) == count && rows_of(scores) == count && columns_of(scores) == columns_of(rows),
            "rows and scores must have one line per query");
    int64_t n = columns_of(rows);
    nb::gil_scoped_release release;
    std::vector<double> exactly(queries.data(), queries.data() + count * columns);
    kernels().exact_scores(view, level, exactly.data(), count, rows.data(), n, scores.data());
  }

  // Add the products over one block to the sums of each query's own rows.
  void add_products(In<float, 2> queries, int block, bool coded, In<int64_t, 2> rows, Out<float, 2> sums) {
    check_queries(queries, block);
    require(!coded || block < view.code_levels, "there are no codes of this block");
    int64_t count = rows_of(queries), n = columns_of(rows);
    require(rows_of(rows) == count && rows_of(sums) == count && columns_of(sums) == n,
            "rows and sums must have one line per query");
    const Block& from = coded ? view.codes[block] : view.picked[block];
    Number number = coded ? Number::int8 : view.number;
    int64_t width = from.high - from.low;
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < count * n; i++)
      require(rows.data()[i] >= 0 && rows.data()[i] < view.count, "there is no such row");
    std::vector<float> some(static_cast<size_t>(count * width));
    for (int64_t q = 0; q < count; q++)
      for (int64_t j = 0; j < width; j++)
        some[static_cast<size_t>(q * width + j)] = queries.data()[q * columns + from.low + j] * from.unit;
    kernels().add_products_at(from, number, some.data(), width, count, rows.data(), n, sums.data());
  }

  void check_hits(int64_t count, const Out<int64_t, 2>& rows, const Out<double, 2>& scores) const {
    bool fits = rows_of(rows) == count && rows_of(scores) == count && columns_of(rows) == columns_of(scores);
    require(fits && columns_of(rows) > 0, "rows and scores must have one line per query");
  }

  Vectors view;
  int64_t columns;

 private:
  void add(std::vector<Block>& to, const Any& array, nb::dlpack::dtype kind, int64_t low, int64_t high, float unit) {
    require(
        array.dtype() == kind && array.ndim() == 2 && rows_of(array) == view.count && columns_of(array) == high - low,
        "a block must have one row per vector and the columns of its dim");
    to.push_back(Block{array.data(), static_cast<int>(low), static_cast<int>(high), unit});
  }

  static ScanArguments part(const ScanArguments& all, int64_t first, int64_t some) {
    ScanArguments mine = all;
    mine.queries += first * all.stride;
    mine.lengths += first;
    mine.count = some;
    return mine;
  }

  std::vector<Any> held_, held_picked_, held_codes_;   // keeps the arrays alive
  In<int64_t, 1> dims_;
  In<float, 2> norms_;
  std::vector<Block> blocks_, picked_, codes_;
};

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
  int64_t search(In<float, 2> queries, OptionalMask mask, Out<int64_t, 2> rows, Out<double, 2> scores,
                 Out<int64_t, 2> left, int threads) {
    vectors_->check_queries(queries, 0);
    vectors_->check_hits(rows_of(queries), rows, scores);
    int64_t levels = view_.level_count, k = columns_of(rows), columns = vectors_->columns;
    require(rows_of(left) == rows_of(queries) && columns_of(left) == levels, "left must have one line per query");
    Mask bytes = vectors_->mask_of(mask);
    std::atomic<int64_t> bad{-1};
    nb::gil_scoped_release release;
    share_queries(rows_of(queries), threads, 4, [&](int64_t first, int64_t some) {
      work_.lend([&](Work* work) {
        int64_t found = kernels().search_sketch(vectors_->view, view_, exponent_, bytes, work,
                                                queries.data() + first * columns, some, k, rows.data() + first * k,
                                                scores.data() + first * k, left.data() + first * levels);
        if (found >= 0) bad = first + found;
      });
    });
    return bad;
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
  Workplace work_{kernels().make_sketch_work, kernels().drop_sketch_work};
};

struct PyPartition {
  PyPartition(int dim, int coded, In<int64_t, 2> lists, In<uint32_t, 2> slots, In<uint8_t, 2> tiles,
              In<float, 2> adjust, In<uint8_t, 2> means, In<float, 2> means_adjust, In<float, 2> axes,
              In<float, 2> tile_columns, In<uint32_t, 1> rows, In<uint32_t, 1> homes, In<int8_t, 2> codes,
              In<float, 1> errors, In<float, 2> columns)
      : lists(lists),
        slots(slots),
        tiles(tiles),
        adjust(adjust),
        means(means),
        means_adjust(means_adjust),
        axes(axes),
        tile_columns(tile_columns),
        rows(rows),
        homes(homes),
        codes(codes),
        errors(errors),
        columns(columns) {
    int64_t count = rows_of(rows), tile_count = rows_of(tiles), eights = (dim + 7) / 8;
    auto tiled = [&](const auto& array, int64_t tiles) {
      return rows_of(array) == tiles && columns_of(array) == kTileRows;
    };
    require(dim > 0 && dim <= 8192 && coded > 0 && columns_of(tiles) == 4 * eights * kTileRows,
            "tiles must have the columns of the dim");
    require(count < kNoRow, "there must be fewer than 2^32 - 1 rows");
    require(tile_count > 0 && tiled(slots, tile_count) && tiled(adjust, tile_count),
            "slots and adjust must have one entry per row of the tiles");
    require(rows_of(codes) == count && columns_of(codes) >= coded && columns_of(codes) % 64 == 0,
            "codes must have one line per row, padded to whole cache lines");
    require(rows_of(errors) == count && (rows_of(homes) == count || rows_of(homes) == 0),
            "errors and homes must have one entry per row");
    require(columns_of(lists) == 2 && columns_of(means) == 4 * eights * kTileRows && rows_of(means) > 0 &&
                tiled(means_adjust, rows_of(means)) && (rows_of(means) - 1) * kTileRows >= rows_of(lists),
            "lists, means and means_adjust must have one entry per partition");
    require(rows_of(columns) == 2 && columns_of(columns) == coded && rows_of(tile_columns) == 2 &&
                columns_of(tile_columns) == dim && (rows_of(axes) == 0 || columns_of(axes) == dim),
            "columns, tile_columns and axes must have one entry per column");
    for (int64_t i = 0; i < rows_of(lists); i++) {
      int64_t first = lists.data()[2 * i], size = lists.data()[2 * i + 1];
      require(first >= 0 && first < tile_count && size >= 0 && size <= tile_count * kTileRows &&
                  first + (size + kTileRows - 1) / kTileRows < tile_count,
              "a partition must lie within the tiles");
    }
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) largest = std::max(largest, rows.data()[i]);
    require(count == 0 || largest < count, "a row must exist");
    view = Partition{dim,
                     coded,
                     static_cast<int>(eights),
                     static_cast<int>(columns_of(codes)),
                     count,
                     rows_of(lists),
                     tile_count,
                     rows_of(means) - 1,
                     lists.data(),
                     slots.data(),
                     tiles.data(),
                     adjust.data(),
                     means.data(),
                     means_adjust.data(),
                     rows_of(axes) > 0 ? axes.data() : nullptr,
                     tile_columns.data(),
                     tile_columns.data() + dim,
                     rows.data(),
                     rows_of(homes) > 0 ? homes.data() : nullptr,
                     codes.data(),
                     errors.data(),
                     columns.data(),
                     columns.data() + coded};
  }

  Partition view;
  In<int64_t, 2> lists;
  In<uint32_t, 2> slots;
  In<uint8_t, 2> tiles;
  In<float, 2> adjust;
  In<uint8_t, 2> means;
  In<float, 2> means_adjust, axes, tile_columns;
  In<uint32_t, 1> rows, homes;
  In<int8_t, 2> codes;
  In<float, 1> errors;
  In<float, 2> columns;
};

// scoring, dim, keep, columns summed before, margin
using PyStep = std::tuple<int, int, int64_t, int, float>;

class PyPartitionSearch {
 public:
  PyPartitionSearch(std::shared_ptr<PyVectors> vectors, std::shared_ptr<PyPartition> partition,
                    const std::vector<PyStep>& steps, int64_t k, double budget, float scale, int64_t most_lists)
      : vectors_(std::move(vectors)), partition_(std::move(partition)) {
    const Vectors& view = vectors_->view;
    const Partition& part = partition_->view;
    require(part.count == view.count && (part.axes == nullptr || rows_of(partition_->axes) == vectors_->columns) &&
                part.dim <= vectors_->columns && part.coded <= vectors_->columns,
            "partitions must belong to the vectors");
    for (const auto& [scoring, dim, keep, known, margin] : steps) {
      int level = 0;
      bool scans = steps_.empty();   // the tiles, whatever their dim
      while (!scans && level < view.levels && view.dims[level] != dim) level++;
      require(level < view.levels, "the dim of a step must be one of the dims");
      require(scoring >= 0 && scoring <= 2 && keep > 0 && keep < kNoRow, "a step must keep some rows");
      Scoring how = static_cast<Scoring>(scoring);
      require(scans || how == Scoring::full || dim <= part.coded, "a step in int8 needs codes");
      require(known >= 0 && (scans || known <= dim), "known columns must be those of the steps before");
      steps_.push_back(Step{how, dim, level, keep, known, margin});
    }
    require(!steps_.empty() && steps_[0].scoring == Scoring::codes &&
                (steps_.size() == 1 || steps_.back().scoring != Scoring::codes),
            "the first step must scan the tiles, and the last must score in full precision");
    require(k > 0 && most_lists > 0 && scale > 0, "k, most_lists and scale must be positive");
    route_ = Route{steps_.data(), static_cast<int>(steps_.size()), k, budget, scale, most_lists};
  }

  // Returns −1, or the number of a query that has no score. The budget of rows is multiplied by `wider`.
  int64_t search(In<float, 2> queries, OptionalMask mask, Out<int64_t, 2> rows, Out<double, 2> scores, int threads,
                 double wider) {
    vectors_->check_queries(queries, 0);
    vectors_->check_hits(rows_of(queries), rows, scores);
    int64_t k = route_.k, columns = vectors_->columns;
    require(columns_of(rows) == k && wider > 0, "rows and scores must have k columns");
    Mask bytes = vectors_->mask_of(mask);
    Route route = route_;
    route.budget *= wider;
    double lists = static_cast<double>(route.most_lists) * std::max(wider, 1.0);
    route.most_lists = static_cast<int64_t>(std::min(lists, static_cast<double>(partition_->view.lists) + 1));
    std::atomic<int64_t> bad{-1};
    nb::gil_scoped_release release;
    share_queries(rows_of(queries), threads, 32, [&](int64_t first, int64_t some) {
      work_.lend([&](Work* work) {
        int64_t found = kernels().search_partition(vectors_->view, partition_->view, route, bytes, work,
                                                   queries.data() + first * columns, some, rows.data() + first * k,
                                                   scores.data() + first * k);
        if (found >= 0) bad = first + found;
      });
    });
    return bad;
  }

  // The score of every mean in multiples of the scale, [queries, partitions]. Returns −1, or a query without a score.
  int64_t score_lists(In<float, 2> queries, Out<float, 2> scores) {
    vectors_->check_queries(queries, 0);
    int64_t lists = partition_->view.lists;
    require(rows_of(scores) == rows_of(queries) && columns_of(scores) == lists, "scores must have one column per list");
    int64_t bad = -1;
    work_.lend([&](Work* work) {
      for (int64_t q = 0; q < rows_of(queries) && bad < 0; q++)
        if (!kernels().score_lists(vectors_->view, partition_->view, route_, work,
                                   queries.data() + q * vectors_->columns, scores.data() + q * lists))
          bad = q;
    });
    return bad;
  }

 private:
  std::shared_ptr<PyVectors> vectors_;
  std::shared_ptr<PyPartition> partition_;
  std::vector<Step> steps_;
  Route route_;
  Workplace work_{kernels().make_partition_work, kernels().drop_partition_work};
};

}   // namespace
}   // namespace matryo

NB_MODULE(_core, m) {
  using namespace matryo;
  m.doc() = "Compiled search kernels; see docs/internals/search-core.md.";
  m.attr("ISA") = kernels().name;
  m.def("default_threads", &default_threads);
  nb::class_<PyVectors>(m, "Vectors")
      .def(nb::init<int, std::vector<Any>, std::vector<Any>, In<int64_t, 1>, In<float, 2>, std::vector<Any>,
                    std::vector<float>>(),
           "metric"_a, "blocks"_a, "picked"_a, "dims"_a.noconvert(), "norms"_a.noconvert(), "codes"_a.noconvert(),
           "units"_a)
      .def("choose", &PyVectors::choose, "queries"_a.noconvert(), "level"_a, "coded"_a, "mask"_a.noconvert().none(),
           "rows"_a.noconvert(), "threads"_a)
      .def("search_exact", &PyVectors::search_exact, "queries"_a.noconvert(), "level"_a, "mask"_a.noconvert().none(),
           "rows"_a.noconvert(), "scores"_a.noconvert(), "threads"_a)
      .def("search_among", &PyVectors::search_among, "queries"_a.noconvert(), "level"_a, "among"_a.noconvert(),
           "rows"_a.noconvert(), "scores"_a.noconvert(), "threads"_a)
      .def("exact_scores", &PyVectors::exact_scores, "queries"_a.noconvert(), "level"_a, "rows"_a.noconvert(),
           "scores"_a.noconvert())
      .def("add_products", &PyVectors::add_products, "queries"_a.noconvert(), "block"_a, "coded"_a,
           "rows"_a.noconvert(), "sums"_a.noconvert());
  nb::class_<PySketch>(m, "Sketch")
      .def(nb::init<std::shared_ptr<PyVectors>, In<double, 2>, In<double, 1>, std::vector<PyLevel>,
                    std::optional<In<float, 1>>, int>(),
           "vectors"_a, "axes"_a.noconvert(), "steps"_a.noconvert(), "levels"_a, "offsets"_a.noconvert().none(),
           "exponent"_a)
      .def("search", &PySketch::search, "queries"_a.noconvert(), "mask"_a.noconvert().none(), "rows"_a.noconvert(),
           "scores"_a.noconvert(), "left"_a.noconvert(), "threads"_a)
      .def("bounds", &PySketch::bounds, "query"_a.noconvert(), "bounds"_a.noconvert());
  nb::class_<PyPartition>(m, "Partition")
      .def(nb::init<int, int, In<int64_t, 2>, In<uint32_t, 2>, In<uint8_t, 2>, In<float, 2>, In<uint8_t, 2>,
                    In<float, 2>, In<float, 2>, In<float, 2>, In<uint32_t, 1>, In<uint32_t, 1>, In<int8_t, 2>,
                    In<float, 1>, In<float, 2>>(),
           "dim"_a, "coded"_a, "lists"_a.noconvert(), "slots"_a.noconvert(), "tiles"_a.noconvert(),
           "adjust"_a.noconvert(), "means"_a.noconvert(), "means_adjust"_a.noconvert(), "axes"_a.noconvert(),
           "tile_columns"_a.noconvert(), "rows"_a.noconvert(), "homes"_a.noconvert(), "codes"_a.noconvert(),
           "errors"_a.noconvert(), "columns"_a.noconvert());
  nb::class_<PyPartitionSearch>(m, "PartitionSearch")
      .def(nb::init<std::shared_ptr<PyVectors>, std::shared_ptr<PyPartition>, const std::vector<PyStep>&, int64_t,
                    double, float, int64_t>(),
           "vectors"_a, "partition"_a, "steps"_a, "k"_a, "budget"_a, "scale"_a, "most_lists"_a)
      .def("search", &PyPartitionSearch::search, "queries"_a.noconvert(), "mask"_a.noconvert().none(),
           "rows"_a.noconvert(), "scores"_a.noconvert(), "threads"_a, "wider"_a = 1.0)
      .def("score_lists", &PyPartitionSearch::score_lists, "queries"_a.noconvert(), "scores"_a.noconvert());
  bind_neighbours(m);
}
