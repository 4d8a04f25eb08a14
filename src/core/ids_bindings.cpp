// The ids of the rows that a search found: integers from the arrays of several segments, in one call.
#include "bindings.h"

namespace matryo {
namespace {

// The ids of consecutive rows, in several arrays.
class PyIds {
 public:
  explicit PyIds(std::vector<In<int64_t, 1>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + rows_of(part));
  }

  // Write the id of each row; `nothing` for a negative one.
  void take(In<int64_t, 2> rows, Out<int64_t, 2> ids, int64_t nothing) const {
    require(rows_of(ids) == rows_of(rows) && columns_of(ids) == columns_of(rows), "ids must have one entry per row");
    for (int64_t i = 0; i < rows_of(rows) * columns_of(rows); i++) {
      int64_t row = rows.data()[i];
      if (row < 0) {
        ids.data()[i] = nothing;
        continue;
      }
      size_t part = 0;   // most rows are in the first part, and there are few parts
      while (part < ends_.size() && row >= ends_[part]) part++;
      require(part < ends_.size(), "there is no such row");
      ids.data()[i] = parts_[part].data()[part == 0 ? row : row - ends_[part - 1]];
    }
  }

 private:
  std::vector<In<int64_t, 1>> parts_;
  std::vector<int64_t> ends_;
};

}   // namespace

void bind_ids(nb::module_& m) {
  nb::class_<PyIds>(m, "Ids")
      .def(nb::init<std::vector<In<int64_t, 1>>>(), "parts"_a)
      .def("take", &PyIds::take, "rows"_a.noconvert(), "ids"_a.noconvert(), "nothing"_a);
}

}   // namespace matryo
