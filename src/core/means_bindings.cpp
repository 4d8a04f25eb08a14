// The nearest means of vectors as a function of the Python module.
#include <nanobind/nanobind.h>

#include <memory>

#include "bindings.h"

namespace matryo {

MeanSearch::~MeanSearch() = default;

namespace {

constexpr int64_t kPart = 768;        // vectors that a thread takes at a time, a multiple of every group
constexpr int kMostColumns = 65536;   // 255 · 127 · 65536 fits 32 bits

void nearest_means(In<float, 2> vectors, In<float, 2> means, bool squared, Out<int64_t, 2> chosen, int threads) {
  int64_t count = rows_of(vectors), columns = columns_of(vectors), copies = columns_of(chosen);
  require(rows_of(means) > 0 && rows_of(means) < (1 << 30), "there must be a mean");
  require(columns_of(means) == columns && columns > 0 && columns <= kMostColumns,
          "vectors and means must have the same columns, up to 65536");
  require(rows_of(chosen) == count && (copies == 1 || copies == 2), "chosen must have one or two columns");
  require(threads > 0, "threads must be positive");
  nb::gil_scoped_release release;
  MeanShape shape{means.data(), rows_of(means), static_cast<int>(columns), squared};
  std::unique_ptr<MeanSearch> search(kernels().make_means(shape));
  share((count + kPart - 1) / kPart, threads, [&](int64_t part) {
    int64_t first = part * kPart, some = count - first < kPart ? count - first : kPart;
    search->assign(vectors.data() + first * columns, some, static_cast<int>(copies), chosen.data() + first * copies);
  });
}

}   // namespace

void bind_means(nb::module_& m) {
  m.def("nearest_means", &nearest_means, "vectors"_a.noconvert(), "means"_a.noconvert(), "squared"_a,
        "chosen"_a.noconvert(), "threads"_a);
}

}   // namespace matryo
