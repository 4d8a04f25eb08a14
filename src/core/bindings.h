// What the bindings share: scratch memory, the division of queries between threads, and the class of vectors.
#pragma once

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
#include <tuple>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "pool.h"

namespace matryo {

using namespace nb::literals;

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
    check_queries(queries, level);
    check_hits(rows_of(queries), rows, scores);
    Mask bytes = mask_of(mask);
    nb::gil_scoped_release release;
    ScanArguments which{level, false, queries.data(), columns, rows_of(queries), nullptr, bytes};
    int64_t bad = search_all(which, allowed(bytes), columns_of(rows), rows.data(), scores.data(), threads);
    require(bad < 0, "every query must have a score");
  }

  // Exact search of the rows `among`. Returns the first query that has no score, or −1.
  int64_t search_among(In<float, 2> queries, int level, In<int64_t, 1> among, Out<int64_t, 2> rows,
                       Out<double, 2> scores, int threads) {
    check_queries(queries, level);
    check_hits(rows_of(queries), rows, scores);
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < rows_of(among); i++)
      require(among.data()[i] >= 0 && among.data()[i] < view.count, "there is no such row");
    ScanArguments which{level,   false,   queries.data(), columns,       rows_of(queries),
                        nullptr, nullptr, among.data(),   rows_of(among)};
    return search_all(which, rows_of(among), columns_of(rows), rows.data(), scores.data(), threads);
  }

  // Exact search of the rows that `which` allows, for queries whose lengths are not known. Returns the first query that
  // has no score, or −1.
  int64_t search_all(ScanArguments which, int64_t allowed, int64_t k, int64_t* rows, double* scores,
                     int threads) const {
    int64_t count = which.count, all = count * columns;
    std::vector<float> scaled(which.queries, which.queries + all), lengths(static_cast<size_t>(count));
    std::vector<double> exactly(which.queries, which.queries + all);
    for (int64_t q = 0; q < count; q++) {
      const double* query = exactly.data() + q * columns;
      double sum = 0, prefix = 0;
      for (int64_t j = 0; j < columns; j++) {
        sum += query[j] * query[j];
        if (j == view.dims[which.level] - 1) prefix = sum;
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
    which.queries = scaled.data();
    which.lengths = lengths.data();
    share_queries(count, threads, 4, [&](int64_t first, int64_t some) {
      kernels().search_exact(view, part(which, first, some), allowed, exactly.data() + first * columns, k,
                             rows + first * k, scores + first * k);
    });
    return -1;
  }

  // The number of rows that a mask allows.
  int64_t allowed(Mask mask) const {
    if (mask == nullptr) return view.count;
    return std::count_if(mask, mask + view.count, [](uint8_t byte) { return byte != 0; });
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

}   // namespace matryo
