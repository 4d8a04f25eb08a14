// The kernels of one instruction set, as a table of functions. kernels.cpp fills one per instruction set.
#pragma once

#include "views.h"

namespace matryo {

// Scratch memory of a thread, kept between calls; only the instruction set that made it knows what it holds.
struct Work;

// A float32 scan; see scan.h.
struct ScanArguments {
  int level;
  bool coded;
  const float* queries;
  int64_t stride, count;
  const float* lengths;
  Mask mask;
  const int64_t* among = nullptr;   // if not null, only these rows are scanned, in increasing order
  int64_t among_count = 0;
};

struct NeighbourShape {
  int64_t queries;
  const int64_t* dims;   // increasing
  int levels;            // the number of dims
  int64_t k;
  int64_t room;   // of a list; more than k
};

// The best k rows so far of some queries at every dim; see neighbours.h. Threads share a call by panels of rows, or by
// groups of queries: parts that do not overlap may run at the same time.
class NeighbourSearch {
 public:
  virtual ~NeighbourSearch();   // in neighbours_bindings.cpp: a kernel file would compile it for one instruction set

  virtual int64_t groups() const = 0;
  virtual int64_t panels() const = 0;   // of the loaded rows

  // Load rows [count, columns], which must live until the last scan: set_rows, then pack_rows for all panels. Writes the
  // norms of the prefixes, [count, levels].
  virtual void set_rows(const float* rows, int64_t count) = 0;
  virtual void pack_rows(int64_t first, int64_t last, float* norms) = 0;

  // Update the lists with the loaded rows, which begin at `first_row` of the database. Rows must come in order. A list of
  // `room` rows is cut to the best `keep`, of which the last becomes the bar.
  virtual void scan(int64_t first_group, int64_t last_group, int64_t first_row, int64_t keep, int64_t room) = 0;
  // Empty the lists, and make the `keep`-th best score of each its bar; shorter lists get no bar.
  virtual void guess(int64_t first_group, int64_t last_group, int64_t keep) = 0;
  // Whether fewer than k rows were above the bar at a dim.
  virtual bool is_short(int64_t query) const = 0;
  // Write the best rows [levels, queries, k], best first; −1 where there are fewer.
  virtual void write(int64_t first_group, int64_t last_group, bool packed, int64_t* rows) = 0;
};

struct MeanShape {
  const float* means;   // [count, columns], which must live as long as the search
  int64_t count;
  int columns;
  bool squared;   // the smallest distance is wanted, else the largest inner product
};

// Finds the nearest means of vectors; see means.h. Threads may share it.
class MeanSearch {
 public:
  virtual ~MeanSearch();   // in means_bindings.cpp, as above

  // Write the nearest mean of each vector and, if `copies` is 2, the one that covers for it: [count, copies].
  virtual void assign(const float* vectors, int64_t count, int copies, int64_t* chosen) const = 0;
};

constexpr int kWeightBits = 22;   // after the point, in the weights of pixels

// The pixels that each of `count` pixels of a resampled axis is the weighted sum of: see resample.h.
struct Taps {
  const int32_t* first;     // [count]: the first pixel
  const int32_t* taps;      // [count]: the number of pixels
  const int32_t* weights;   // [count, most], in fixed point
  int64_t count;
  int most;
};

struct Kernels {
  const char* name;

  // scan.h
  void (*choose)(const Vectors&, const ScanArguments&, int64_t wanted, int64_t* rows);
  void (*search_exact)(const Vectors&, const ScanArguments&, int64_t allowed, const double* exactly, int64_t k,
                       int64_t* rows, double* scores);
  void (*exact_scores)(const Vectors&, int level, const double* queries, int64_t count, const int64_t* rows, int64_t n,
                       double* scores);
  void (*add_products_at)(const Block&, Number, const float* queries, int64_t stride, int64_t count,
                          const int64_t* rows, int64_t n, float* sums);

  // sketch.h
  Work* (*make_sketch_work)();
  void (*drop_sketch_work)(Work*);
  int64_t (*search_sketch)(const Vectors&, const Sketch&, int exponent, Mask, Patience&, Work*, const float* queries,
                           int64_t count, int64_t k, const double* bars, int64_t* rows, double* scores, int64_t* left);
  bool (*bound_sketch)(const Vectors&, const Sketch&, int exponent, Work*, const float* query, double* bounds);

  // partition.h
  Work* (*make_partition_work)();
  void (*drop_partition_work)(Work*);
  int64_t (*search_partition)(const Vectors&, const Partition&, const Tail*, const Route&, Mask, Work*,
                              const float* queries, int64_t count, int64_t* rows, double* scores);
  bool (*score_lists)(const Vectors&, const Partition&, const Route&, Work*, const float* query, float* scores);

  // neighbours.h
  int panel_rows, group_queries;   // rows and queries that are summed together
  NeighbourSearch* (*make_neighbours)(const NeighbourShape&, const float* queries);

  // means.h
  MeanSearch* (*make_means)(const MeanShape&);

  // packed.h
  void (*search_packed)(const PackedRows&, const float* queries, int64_t count, Mask, int64_t k, int64_t* rows,
                        float* scores);
  void (*score_packed)(const PackedRows&, const float* queries, int64_t count, const int64_t* rows, int64_t n,
                       float* scores);

  // products.h
  void (*search_products)(const ProductRows&, const ProductQueries&, int64_t count, Mask, int64_t k, int64_t* rows,
                          float* scores);
  void (*sum_products)(const ProductRows&, const float* tables, float* sums);
  // resample.h
  void (*resample)(const uint8_t* pixels, int64_t height, int64_t width, const Taps& columns, const Taps& rows,
                   uint8_t* work, uint8_t* out);
};

// The kernels in use: those of the best instruction set that the processor has, or of MATRYO_ISA in the environment.
const Kernels& kernels();

}   // namespace matryo
