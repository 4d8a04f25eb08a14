// Compiled once per instruction set: the macro MATRYO_ISA is the name of the namespace, and of the table.
#include "kernels.h"

#include "means.h"
#include "neighbours.h"
#include "packed.h"
#include "partition.h"
#include "products.h"
#include "resample.h"
#include "scan.h"
#include "sketch.h"

namespace matryo::MATRYO_ISA {
namespace {

#define MATRYO_TEXT_OF(name) #name
#define MATRYO_TEXT(name) MATRYO_TEXT_OF(name)

Scan as_scan(const Vectors& vectors, const ScanArguments& a) {
  return Scan{vectors, a.level, a.coded, a.queries, a.stride, a.count, a.lengths, a.mask, a.among, a.among_count};
}

const Kernels table = {
    .name = MATRYO_TEXT(MATRYO_ISA),
    .choose = [](const Vectors& vectors, const ScanArguments& scan, int64_t wanted,
                 int64_t* rows) { choose(as_scan(vectors, scan), wanted, rows); },
    .search_exact = [](const Vectors& vectors, const ScanArguments& scan, int64_t allowed, const double* exactly,
                       int64_t k, int64_t* rows,
                       double* scores) { search_exact(as_scan(vectors, scan), allowed, exactly, k, rows, scores); },
    .exact_scores = exact_scores,
    .add_products_at =
        [](const Block& block, Number number, const float* queries, int64_t stride, int64_t count, const int64_t* rows,
           int64_t n, float* sums) {
          if (number == Number::float32) add_products_at<float>(block, queries, stride, count, rows, n, sums);
          if (number == Number::float16) add_products_at<uint16_t>(block, queries, stride, count, rows, n, sums);
          if (number == Number::int8) add_products_at<int8_t>(block, queries, stride, count, rows, n, sums);
        },
    .make_sketch_work = [] { return reinterpret_cast<Work*>(new SketchWork); },
    .drop_sketch_work = [](Work* work) { delete reinterpret_cast<SketchWork*>(work); },
    .search_sketch =
        [](const Vectors& vectors, const Sketch& sketch, int exponent, Mask mask, Patience& patience, Work* work,
           const float* queries, int64_t count, int64_t k, const double* bars, int64_t* rows, double* scores,
           int64_t* left) {
          CertifiedSearch search(vectors, sketch, exponent, mask, *reinterpret_cast<SketchWork*>(work));
          return search.search(queries, count, k, bars, patience, rows, scores, left);
        },
    .bound_sketch =
        [](const Vectors& vectors, const Sketch& sketch, int exponent, Work* work, const float* query, double* bounds) {
          CertifiedSearch search(vectors, sketch, exponent, nullptr, *reinterpret_cast<SketchWork*>(work));
          return search.bounds(query, bounds);
        },
    .make_partition_work = [] { return reinterpret_cast<Work*>(new PartitionWork); },
    .drop_partition_work = [](Work* work) { delete reinterpret_cast<PartitionWork*>(work); },
    .search_partition =
        [](const Vectors& vectors, const Partition& partition, const Tail* tail, const Route& route, Mask mask,
           Work* work, const float* queries, int64_t count, int64_t* rows, double* scores) {
          PartitionSearch search(vectors, partition, tail, route, mask, *reinterpret_cast<PartitionWork*>(work));
          return search.search(queries, count, rows, scores);
        },
    .score_lists =
        [](const Vectors& vectors, const Partition& partition, const Route& route, Work* work, const float* query,
           float* scores) {
          PartitionSearch search(vectors, partition, nullptr, route, nullptr, *reinterpret_cast<PartitionWork*>(work));
          return search.score_lists(query, scores);
        },
    .panel_rows = kPanelRows,
    .group_queries = kGroupQueries,
    .make_neighbours = [](const NeighbourShape& shape, const float* queries) -> NeighbourSearch* {
      return new Neighbours(shape, queries);
    },
    .make_means = [](const MeanShape& shape) -> MeanSearch* { return new Means(shape); },
    .search_packed = [](const PackedRows& packed, const float* queries, int64_t count, Mask mask, int64_t k,
                        int64_t* rows,
                        float* scores) { PackedScan(packed).search(queries, count, mask, k, rows, scores); },
    .score_packed = [](const PackedRows& packed, const float* queries, int64_t count, const int64_t* rows, int64_t n,
                       float* scores) { PackedScan(packed).score(queries, count, rows, n, scores); },
    .search_products = [](const ProductRows& products, const ProductQueries& queries, int64_t count, Mask mask,
                          int64_t k, int64_t* rows,
                          float* scores) { ProductScan(products).search(queries, count, mask, k, rows, scores); },
    .sum_products = [](const ProductRows& products, const float* tables,
                       float* sums) { ProductScan(products).sums(tables, sums); },
    .resample = resample,
};

}   // namespace

const Kernels& kernels() { return table; }

}   // namespace matryo::MATRYO_ISA
