// The all-dims search as a class of the Python module: checks, threads, and the memory of the rows.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "arrays.h"
#include "kernels.h"
#include "pool.h"

using namespace nanobind::literals;

namespace matryo {

NeighbourSearch::~NeighbourSearch() = default;

namespace {

constexpr int64_t kPartBytes = 384 << 10;   // 16-bit queries that a thread scans together: they stay in its L2 cache
constexpr int64_t kMostRows = 0xFFFFFFFF;

class PyNeighbours {
 public:
  PyNeighbours(In<float, 2> queries, In<int64_t, 1> dims, int64_t k, int64_t room, int threads)
      : queries_(rows_of(queries)),
        columns_(columns_of(queries)),
        levels_(rows_of(dims)),
        k_(k),
        room_(room),
        threads_(threads) {
    require(threads > 0, "threads must be positive");
    require(queries_ > 0 && levels_ > 0 && levels_ < (1 << 24), "there must be a query and a dim");
    int64_t low = 0;
    for (int64_t i = 0; i < levels_; i++) {
      require(dims.data()[i] > low, "dims must increase");
      low = dims.data()[i];
    }
    require(low == columns_ && columns_ < (1 << 24), "queries must have the columns of the last dim");
    require(k > 0 && k < room && room <= 2 * kMostRows, "room must be more than k");
    NeighbourShape shape{queries_, dims.data(), static_cast<int>(levels_), k, room};
    nb::gil_scoped_release release;
    search_.reset(kernels().make_neighbours(shape, queries.data()));
  }

  // Load rows, which score() and guess() then scan; writes the norms of their prefixes.
  void load(In<float, 2> rows, Out<float, 2> norms) {
    require(columns_of(rows) == columns_, "rows must have the columns of the queries");
    require(rows_of(norms) == rows_of(rows) && columns_of(norms) == levels_,
            "norms must have one entry per row and dim");
    require(rows_of(rows) <= kMostRows, "there must be fewer than 2^32 rows");
    std::optional<In<float, 2>> previous;   // released last, when this thread has the GIL again
    nb::gil_scoped_release release;
    std::lock_guard guard(lock_);
    search_->set_rows(rows.data(), rows_of(rows));
    previous.swap(held_);
    held_ = rows;
    share_out(search_->panels(), search_->panels(),
              [&](int64_t first, int64_t last) { search_->pack_rows(first, last, norms.data()); });
  }

  void score(int64_t first) {
    nb::gil_scoped_release release;
    std::lock_guard guard(lock_);
    int64_t count = held_ ? rows_of(*held_) : 0;
    require(first >= 0 && first <= kMostRows - count, "there must be fewer than 2^32 rows");
    scan(first, k_, room_);
  }

  // Take the loaded rows for a sample, and set the bars that `keep` rows of it reach.
  void guess(int64_t keep) {
    require(keep > 0 && keep < room_, "keep must be less than room");
    nb::gil_scoped_release release;
    std::lock_guard guard(lock_);
    scan(0, keep, 2 * keep < room_ ? 2 * keep : room_);
    by_groups([&](int64_t first, int64_t last) { search_->guess(first, last, keep); });
  }

  void find_short(Out<bool, 1> result) {
    require(rows_of(result) == queries_, "the result must have one entry per query");
    nb::gil_scoped_release release;
    std::lock_guard guard(lock_);
    for (int64_t i = 0; i < queries_; i++) result.data()[i] = search_->is_short(i);
  }

  // The rows of the best, or with `packed` their keys, which hold the scores too.
  void best(Out<int64_t, 3> rows, bool packed) {
    require(rows_of(rows) == levels_ && columns_of(rows) == queries_ && static_cast<int64_t>(rows.shape(2)) == k_,
            "rows must have the shape [dims, queries, k]");
    nb::gil_scoped_release release;
    std::lock_guard guard(lock_);
    by_groups([&](int64_t first, int64_t last) { search_->write(first, last, packed, rows.data()); });
  }

 private:
  void scan(int64_t row, int64_t keep, int64_t room) {
    by_groups([&](int64_t first, int64_t last) { search_->scan(first, last, row, keep, room); });
  }

  template <class Run>
  void by_groups(Run run) {
    int64_t most = kPartBytes / (2 * columns_ * kernels().group_queries);
    share_out(search_->groups(), most > 0 ? most : 1, run);
  }

  // Call `run(first, last)` for equal parts of at most `most`, as many for each thread.
  template <class Run>
  void share_out(int64_t count, int64_t most, Run run) {
    int64_t rounds = (count + most * threads_ - 1) / (most * threads_), parts = std::min(count, rounds * threads_);
    share(parts, threads_, [&](int64_t part) { run(count * part / parts, count * (part + 1) / parts); });
  }

  int64_t queries_, columns_, levels_, k_, room_;
  int threads_;
  std::mutex lock_;   // one call at a time changes the lists
  std::unique_ptr<NeighbourSearch> search_;
  std::optional<In<float, 2>> held_;   // keeps the loaded rows alive
};

}   // namespace

void bind_neighbours(nb::module_& m) {
  m.attr("PANEL_ROWS") = kernels().panel_rows;
  m.attr("GROUP_QUERIES") = kernels().group_queries;
  nb::class_<PyNeighbours>(m, "Neighbours")
      .def(nb::init<In<float, 2>, In<int64_t, 1>, int64_t, int64_t, int>(), "queries"_a.noconvert(),
           "dims"_a.noconvert(), "k"_a, "room"_a, "threads"_a)
      .def("load", &PyNeighbours::load, "rows"_a.noconvert(), "norms"_a.noconvert())
      .def("score", &PyNeighbours::score, "first"_a)
      .def("guess", &PyNeighbours::guess, "keep"_a)
      .def("short", &PyNeighbours::find_short, "result"_a.noconvert())
      .def(
          "indices", [](PyNeighbours& self, Out<int64_t, 3> rows) { self.best(rows, false); }, "rows"_a.noconvert())
      .def("keys", [](PyNeighbours& self, Out<int64_t, 3> keys) { self.best(keys, true); }, "keys"_a.noconvert());
}

}   // namespace matryo
