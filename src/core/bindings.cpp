// The Python module. Bindings check every shape and bound once, release the GIL, and call the kernels.
#include "bindings.h"

namespace matryo {

void bind_sketch(nb::module_& m);       // sketch_bindings.cpp
void bind_partition(nb::module_& m);    // partition_bindings.cpp
void bind_neighbours(nb::module_& m);   // neighbours_bindings.cpp
void bind_means(nb::module_& m);        // means_bindings.cpp
void bind_packed(nb::module_& m);       // packed_bindings.cpp
void bind_products(nb::module_& m);     // products_bindings.cpp
void bind_ids(nb::module_& m);          // ids_bindings.cpp
void bind_resample(nb::module_& m);     // resample_bindings.cpp

}   // namespace matryo

NB_MODULE(_core, m) {
  using namespace matryo;
  m.doc() = "Compiled kernels; see docs/internals/search-core.md.";
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
  bind_sketch(m);
  bind_partition(m);
  bind_neighbours(m);
  bind_means(m);
  bind_packed(m);
  bind_products(m);
  bind_ids(m);
  bind_resample(m);
}
