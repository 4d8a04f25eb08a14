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

// Move the keys that are larger than a pivot to the front; returns their number. Swaps without a branch, which could not
// be predicted.
template <class T>
MATRYO_INLINE int64_t move_larger(T* keys, int64_t count, T pivot) {
  int64_t edge = 0;
  for (int64_t i = 0; i < count; i++) {
    T key = keys[i];
    keys[i] = keys[edge];
    keys[edge] = key;
    edge += key > pivot;
  }
  return edge;
}

#if MATRYO_AVX512
// Eight keys at a time: those of the first and the last eight are set aside, so that there is always room for eight more
// at the end that has less of it.
inline int64_t move_larger(Key* keys, int64_t count, Key pivot) {
  if (count < 24) return move_larger<Key>(keys, count, pivot);
  Key *front = keys,
      *back = keys + count;   // the next larger keys are written from `front` up, the others below `back`
  const Key *next = keys + 8, *end = keys + count - 8;   // keys that were not read yet
  auto put = [&](Longs some, uint32_t lanes) __attribute__((always_inline)) {
    uint32_t larger = above(some, broadcast(pivot)) & lanes, others = lanes & ~larger;
    store_lanes(front, some, larger);
    front += __builtin_popcount(larger);
    back -= __builtin_popcount(others);
    store_lanes(back, some, others);
  };
  Longs first = load<Longs>(keys), last = load<Longs>(end);
  while (end - next >= 8) {
    int64_t up = next - front <= back - end ? 8 : 0;   // no branch, which could not be predicted
    const Key* from = up != 0 ? next : end - 8;
    next += up;
    end -= 8 - up;
    put(load<Longs>(from), 0xFF);
  }
  Longs rest = {};
  std::memcpy(&rest, next, sizeof(Key) * static_cast<size_t>(end - next));
  put(rest, (1u << (end - next)) - 1);
  put(first, 0xFF);
  put(last, 0xFF);
  return front - keys;
}
#endif

// Divide at least two keys into those larger than a pivot, the pivot, and the others; returns the place of the pivot.
template <class T>
MATRYO_INLINE int64_t divide(T* keys, int64_t count) {
  int64_t last = count - 1, middle = count >> 1;
  bool a = keys[0] > keys[middle], b = keys[0] > keys[last], c = keys[middle] > keys[last];
  int64_t median = a != b ? 0 : (a != c ? last : middle);
  T pivot = keys[median];
  keys[median] = keys[last];
  int64_t edge = move_larger(keys, last, pivot);
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
