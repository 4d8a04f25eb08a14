// Crop and resize an RGB image in one pass over the rows of the crop, with weights in fixed point.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace matryo::MATRYO_ISA {

constexpr int kRowsAtOnce = 4;   // rows whose columns are resampled at once: the pixels of PixelSums

MATRYO_INLINE uint8_t rounded(int32_t sum) {
  sum >>= kWeightBits;
  return static_cast<uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

// Resample the columns of 4 rows, of which one byte after the last pixel may be read. Writes 4 lines of `line` bytes, at
// least one more than their pixels need.
inline void resample_columns(const uint8_t* const rows[kRowsAtOnce], const Taps& columns, int64_t line, uint8_t* out) {
  const uint8_t *row0 = rows[0], *row1 = rows[1], *row2 = rows[2], *row3 = rows[3];
  for (int64_t x = 0; x < columns.count; x++) {
    const int32_t* weights = columns.weights + x * columns.most;
    int64_t from = columns.first[x] * 3;
    PixelSums sums(1 << (kWeightBits - 1));
    for (int tap = 0; tap < columns.taps[x]; tap++, from += 3)
      sums.add(row0 + from, row1 + from, row2 + from, row3 + from, weights[tap]);
    sums.write(kWeightBits, out + x * 3, line);
  }
}

// Write one row of the result, `width` bytes: the weighted sum of `taps` lines.
inline void resample_row(const uint8_t* lines, int64_t line, const int32_t* weights, int taps, int64_t width,
                         uint8_t* out) {
  constexpr int64_t kPart = 64;   // bytes whose sums stay in registers
  for (int64_t start = 0; start < width; start += kPart) {
    int64_t size = width - start < kPart ? width - start : kPart;
    int32_t sums[kPart];
    for (int64_t i = 0; i < kPart; i++) sums[i] = 1 << (kWeightBits - 1);
    for (int tap = 0; tap < taps; tap++) {
      const uint8_t* row = lines + tap * line + start;
      int32_t weight = weights[tap];
      if (size == kPart)
        for (int64_t i = 0; i < kPart; i++) sums[i] += row[i] * weight;
      else
        for (int64_t i = 0; i < size; i++) sums[i] += row[i] * weight;
    }
    for (int64_t i = 0; i < size; i++) out[start + i] = rounded(sums[i]);
  }
}

// Resample `pixels`, [height, width, 3], to [rows.count, columns.count, 3]. `work` has room for one line of columns.count
// + 1 pixels per row that is needed, rounded up to a multiple of 4, and for one row of the image and a byte.
inline void resample(const uint8_t* pixels, int64_t height, int64_t width, const Taps& columns, const Taps& rows,
                     uint8_t* work, uint8_t* out) {
  int64_t line = (columns.count + 1) * 3, low = rows.first[0];
  int64_t high = rows.first[rows.count - 1] + rows.taps[rows.count - 1];
  uint8_t* last = work + (high - low + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce * line;
  if (high == height) std::memcpy(last, pixels + (height - 1) * width * 3, width * 3);
  for (int64_t row = low; row < high; row += kRowsAtOnce) {
    const uint8_t* from[kRowsAtOnce];
    for (int i = 0; i < kRowsAtOnce; i++) {
      int64_t wanted = row + i < high ? row + i : high - 1;
      from[i] = wanted == height - 1 ? last : pixels + wanted * width * 3;
    }
    resample_columns(from, columns, line, work + (row - low) * line);
  }
  for (int64_t y = 0; y < rows.count; y++)
    resample_row(work + (rows.first[y] - low) * line, line, rows.weights + y * rows.most, rows.taps[y],
                 columns.count * 3, out + y * columns.count * 3);
}

}   // namespace matryo::MATRYO_ISA
