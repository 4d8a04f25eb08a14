// Crop and resize as a function of the Python module: the weights are those of Pillow's antialiased bilinear filter.
#include "bindings.h"

namespace matryo {
namespace {

constexpr int64_t kMostPixels = 1 << 28;   // of an image, so that no size overflows

// Memory of the weights of one axis.
struct Axis {
  std::vector<int32_t> first, taps, weights;
  Taps view;

  // The weights of pixels low … high of `size`, resampled to `count`: a triangle as wide as the scale, at least 2.
  // Computed as Pillow does, in double from bounds in float, so that every result has the same bits.
  Axis(int64_t size, float low, float high, int64_t count) : first(count), taps(count) {
    double scale = static_cast<double>(high - low) / static_cast<double>(count), wide = std::max(scale, 1.0);
    int most = static_cast<int>(std::ceil(wide)) * 2 + 1;
    weights.assign(count * most, 0);
    std::vector<double> exact(most);
    for (int64_t i = 0; i < count; i++) {
      double centre = low + (static_cast<double>(i) + 0.5) * scale, sum = 0;
      auto from = std::max<int64_t>(static_cast<int64_t>(centre - wide + 0.5), 0);
      int64_t to = std::min<int64_t>(static_cast<int64_t>(centre + wide + 0.5), size);
      first[i] = static_cast<int32_t>(from);
      taps[i] = static_cast<int32_t>(to - from);
      for (int tap = 0; tap < taps[i]; tap++) {
        double distance = std::abs((static_cast<double>(from + tap) - centre + 0.5) * (1.0 / wide));
        exact[tap] = distance < 1 ? 1 - distance : 0;
        sum += exact[tap];
      }
      for (int tap = 0; tap < taps[i]; tap++) {
        double share = sum != 0 ? exact[tap] / sum : exact[tap];
        weights[i * most + tap] = static_cast<int32_t>(0.5 + share * (1 << kWeightBits));
      }
    }
    view = Taps{first.data(), taps.data(), weights.data(), count, most};
  }
};

void resample(In<uint8_t, 3> pixels, float left, float top, float right, float bottom, Out<uint8_t, 3> out) {
  auto size = [](const auto& array, int axis) { return static_cast<int64_t>(array.shape(axis)); };
  int64_t height = size(pixels, 0), width = size(pixels, 1);
  require(size(pixels, 2) == 3 && size(out, 2) == 3, "pixels and out must have 3 channels");
  require(height > 0 && width > 0 && height * width <= kMostPixels, "the image is empty or too large");
  require(size(out, 0) > 0 && size(out, 1) > 0 && size(out, 0) * size(out, 1) <= kMostPixels, "out must not be empty");
  require(0 <= left && left < right && right <= static_cast<float>(width) && 0 <= top && top < bottom &&
              bottom <= static_cast<float>(height),
          "the box must lie within the image");
  nb::gil_scoped_release release;
  Axis columns(width, left, right, size(out, 1)), rows(height, top, bottom, size(out, 0));
  // Kept by each thread: allocating it costs as much as part of the work.
  thread_local std::vector<uint8_t> work;
  size_t needed = static_cast<size_t>((height + 4) * (size(out, 1) + 1) * 3 + width * 3 + 4);
  if (work.size() < needed) work.resize(needed);
  kernels().resample(pixels.data(), height, width, columns.view, rows.view, work.data(), out.data());
}

}   // namespace

void bind_resample(nb::module_& m) {
  m.def("resample", &resample, "pixels"_a.noconvert(), "left"_a, "top"_a, "right"_a, "bottom"_a, "out"_a.noconvert());
}

}   // namespace matryo
