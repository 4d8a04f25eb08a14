// The Python class of means: the nearest means of vectors.
#include <nanobind/nanobind.h>

#include <memory>

#include "bindings.h"

namespace matryo {

MeanSearch::~MeanSearch() = default;

namespace {

constexpr int64_t kPart = 768;        // vectors that a thread takes at a time, a multiple of every group
constexpr int kMostColumns = 65536;   // 255 · 127 · 65536 fits 32 bits

// Means that are prepared once, for any number of vectors. Threads may share them.
class PyMeans {
 public:
  PyMeans(In<float, 2> means, bool squared) : means_(means) {
    require(rows_of(means) > 0 && rows_of(means) < (1 << 30), "there must be a mean");
    require(columns_of(means) > 0 && columns_of(means) <= kMostColumns, "means must have 1 to 65536 columns");
    nb::gil_scoped_release release;
    search_.reset(
        kernels().make_means(MeanShape{means.data(), rows_of(means), static_cast<int>(columns_of(means)), squared}));
  }

  void nearest(In<float, 2> vectors, Out<int64_t, 2> chosen, int threads) const {
    int64_t count = rows_of(vectors), columns = columns_of(vectors), copies = columns_of(chosen);
    require(columns_of(means_) == columns, "vectors and means must have the same columns");
    require(rows_of(chosen) == count && (copies == 1 || copies == 2), "chosen must have one or two columns");
    require(threads > 0, "threads must be positive");
    nb::gil_scoped_release release;
    share((count + kPart - 1) / kPart, threads, [&](int64_t part) {
      int64_t first = part * kPart, some = count - first < kPart ? count - first : kPart;
      search_->assign(vectors.data() + first * columns, some, static_cast<int>(copies), chosen.data() + first * copies);
    });
  }

 private:
  In<float, 2> means_;
  std::unique_ptr<MeanSearch> search_;
};

}   // namespace

void bind_means(nb::module_& m) {
  nb::class_<PyMeans>(m, "Means")
      .def(nb::init<In<float, 2>, bool>(), "means"_a.noconvert(), "squared"_a)
      .def("nearest", &PyMeans::nearest, "vectors"_a.noconvert(), "chosen"_a.noconvert(), "threads"_a);
}

}   // namespace matryo
