// Work space of a kernel: grows, never shrinks, and is aligned to a cache line.
#pragma once

#include <new>

#include "simd.h"

namespace matryo::MATRYO_ISA {

template <class T>
MATRYO_INLINE void exchange(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t count) { reserve(count); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  // Room for `count` items; what was there is lost if it grows.
  T* reserve(int64_t count) {
    if (count > room_) {   // so count is positive, which GCC does not see
      if (count < 0) __builtin_unreachable();
      release();
      room_ = 0;
      data_ = static_cast<T*>(::operator new(sizeof(T) * static_cast<size_t>(count), kLine));
      room_ = count;
    }
    return data_;
  }

  // Room for `count` items, of which the first `used` are kept.
  void grow(int64_t used, int64_t count) {
    if (count <= room_) return;
    Buffer larger(count);
    if (used > 0) std::memcpy(larger.data_, data_, sizeof(T) * static_cast<size_t>(used));
    exchange(larger.data_, data_);
    exchange(larger.room_, room_);
  }

  MATRYO_INLINE int64_t room() const { return room_; }
  MATRYO_INLINE T* data() { return data_; }
  MATRYO_INLINE const T* data() const { return data_; }
  MATRYO_INLINE T& operator[](int64_t i) { return data_[i]; }
  MATRYO_INLINE const T& operator[](int64_t i) const { return data_[i]; }

 private:
  static constexpr std::align_val_t kLine{64};

  void release() {
    if (data_ != nullptr) ::operator delete(data_, kLine);
    data_ = nullptr;
  }

  T* data_ = nullptr;
  int64_t room_ = 0;
};

}   // namespace matryo::MATRYO_ISA
