// Arrays of Python: their types, and the checks of their shapes.
#pragma once

#include <nanobind/ndarray.h>

#include <stdexcept>

namespace matryo {

namespace nb = nanobind;

template <class T, size_t N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, size_t N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Any = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

inline void require(bool fits, const char* rule) {
  if (!fits) throw std::invalid_argument(rule);
}

template <class T>
int64_t rows_of(const T& array) {
  return static_cast<int64_t>(array.shape(0));
}

template <class T>
int64_t columns_of(const T& array) {
  return static_cast<int64_t>(array.shape(1));
}

}   // namespace matryo
