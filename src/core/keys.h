// Keys: a score and a row in one integer, so that selecting the best is a comparison of integers.
//
// A key sorts by score, then by smaller row. The upper half holds the bits of the float32 score, arranged so that they
// sort as integers; the lower half holds 2³² − 1 − row.
#pragma once

#include <cmath>

#include "simd.h"

namespace matryo::MATRYO_ISA {

using Key = int64_t;
constexpr Key kLowestKey = INT64_MIN;
constexpr int64_t kMostRows = 0xFFFFFFFF;

// Floats sort like sign-magnitude integers. Flipping the magnitude bits of negative ones gives two's complement.
MATRYO_INLINE int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

MATRYO_INLINE Key key_of(float score, int64_t row) {
  int32_t bits = load<int32_t>(&score);
  bits = bits == INT32_MIN ? 0 : bits;   // −0 and 0 are one score
  return (static_cast<Key>(ordered(bits)) << 32) | (kMostRows - row);
}

MATRYO_INLINE float score_of(Key key) {
  int32_t bits = ordered(static_cast<int32_t>(key >> 32));
  return load<float>(&bits);
}

MATRYO_INLINE int64_t row_of(Key key) { return kMostRows - (key & kMostRows); }

// Divide at least two keys into those larger than a pivot, the pivot, and the others; returns the place of the pivot.
template <class T>
MATRYO_INLINE int64_t divide(T* keys, int64_t count) {
  int64_t last = count - 1, middle = count >> 1;
  bool a = keys[0] > keys[middle], b = keys[0] > keys[last], c = keys[middle] > keys[last];
  int64_t median = a != b ? 0 : (a != c ? last : middle);
  T pivot = keys[median];
  keys[median] = keys[last];
  int64_t edge = 0;
  for (int64_t i = 0; i < last; i++) {   // swaps without a branch, which could not be predicted
    T key = keys[i];
    keys[i] = keys[edge];
    keys[edge] = key;
    edge += key > pivot;
  }
  keys[last] = keys[edge];
  keys[edge] = pivot;
  return edge;
}

// Move the `keep` largest keys to the front, the smallest of them to keep − 1. 1 ≤ keep ≤ count.
template <class T>
inline void select_largest(T* keys, int64_t count, int64_t keep) {
  while (count > 1) {
    int64_t edge = divide(keys, count);
    if (edge == keep - 1) return;
    if (edge < keep - 1) {
      keys += edge + 1;
      count -= edge + 1;
      keep -= edge + 1;
    } else {
      count = edge;
    }
  }
}

// Sort keys, the largest first.
template <class T>
inline void sort_descending(T* keys, int64_t count) {
  while (count > 24) {   // quicksort: the smaller part first, so that few calls are nested
    int64_t edge = divide(keys, count), rest = count - edge - 1;
    if (edge < rest) {
      sort_descending(keys, edge);
      keys += edge + 1;
      count = rest;
    } else {
      sort_descending(keys + edge + 1, rest);
      count = edge;
    }
  }
  for (int64_t i = 1; i < count; i++) {
    T key = keys[i];
    int64_t j = i;
    for (; j > 0 && key > keys[j - 1]; j--) keys[j] = keys[j - 1];
    keys[j] = key;
  }
}

// The best `keep` keys of a stream: a buffer that is cut to the best when it is full.
struct Best {
  Key* keys;
  int64_t keep;
  int64_t count = 0;
  float bar = -INFINITY;   // once the buffer was full, only a score above this can be among the best

  MATRYO_INLINE static int64_t room(int64_t keep) { return 2 * keep + 64; }

  // Rows must come in increasing order: of equal scores the earlier row stays.
  MATRYO_INLINE void add(float score, int64_t row) {
    keys[count++] = key_of(score, row);
    if (count == room(keep)) cut();
  }

  void cut() {
    select_largest(keys, count, keep);
    bar = score_of(keys[keep - 1]);
    count = keep;
  }

  // Sort what is kept; returns the number of keys.
  int64_t finish() {
    if (count > keep) {
      select_largest(keys, count, keep);
      count = keep;
    }
    sort_descending(keys, count);
    return count;
  }
};

}   // namespace matryo::MATRYO_ISA
