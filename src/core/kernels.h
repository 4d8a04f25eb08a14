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
  int64_t (*search_sketch)(const Vectors&, const Sketch&, int exponent, Mask, Work*, const float* queries,
                           int64_t count, int64_t k, int64_t* rows, double* scores, int64_t* left);
  bool (*bound_sketch)(const Vectors&, const Sketch&, int exponent, Work*, const float* query, double* bounds);

  // partition.h
  Work* (*make_partition_work)();
  void (*drop_partition_work)(Work*);
  int64_t (*search_partition)(const Vectors&, const Partition&, const Route&, Mask, Work*, const float* queries,
                              int64_t count, int64_t* rows, double* scores);
};

// The kernels in use: those of the best instruction set that the processor has, or of MATRYO_ISA in the environment.
const Kernels& kernels();

}  // namespace matryo
