// What a block's convolution reads, a few channels at a time.
//
// Most kernels take pixels in pairs, columns 2 p - 1 and 2 p: both of an up-sampled pair lie between the same two
// columns of the coarse image. So a row has width / 2 + 1 pairs, the first and perhaps the last one half outside.
#pragma once

#include "../scalar.h"
#include "blocks_kernel.h"
#include "launch.cuh"
#include "number.cuh"

namespace disk_ops {

constexpr int kBlockThreads = 256;

// 16 bytes of channels, or one channel where they can't be read so.
template <typename T>
constexpr int kChannelsOf = 16 / static_cast<int>(sizeof(T));

template <typename T, int kChannels>
struct alignas(kChannels * sizeof(T)) Channels {
  T at[kChannels];
};

template <int kChannels>
struct Numbers {
  float at[kChannels];
};

template <int kChannels, typename T>
__device__ __forceinline__ Numbers<kChannels> load_channels(const T* from) {
  const auto packed = *reinterpret_cast<const Channels<T, kChannels>*>(from);
  Numbers<kChannels> out;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) out.at[i] = to_number(packed.at[i]);
  return out;
}

template <int kChannels, typename T>
__device__ __forceinline__ void store_channels(T* to, const Numbers<kChannels>& numbers) {
  Channels<T, kChannels> packed;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) packed.at[i] = from_number<T>(numbers.at[i]);
  *reinterpret_cast<Channels<T, kChannels>*>(to) = packed;
}

// Between two pixels of the coarse image: 3/4 of the nearer, 1/4 of the other.
template <int kChannels>
__device__ __forceinline__ Numbers<kChannels> blend(const Numbers<kChannels>& near, const Numbers<kChannels>& far) {
  Numbers<kChannels> out;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) out.at[i] = fmaf(near.at[i], 0.75f, far.at[i] * 0.25f);
  return out;
}

template <int kChannels>
__device__ __forceinline__ Numbers<kChannels> mean_of_four(const Numbers<kChannels>& a, const Numbers<kChannels>& b,
                                                           const Numbers<kChannels>& c, const Numbers<kChannels>& d) {
  Numbers<kChannels> out;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) out.at[i] = ((a.at[i] + b.at[i]) + (c.at[i] + d.at[i])) * 0.25f;
  return out;
}

__device__ __forceinline__ int within(int position, int size) {  // the nearest place of [0, size)
  return larger(0, smaller(position, size - 1));
}

// Of the up-sampled position, the nearer of the two coarse ones that it lies between, and the other.
__device__ __forceinline__ int nearer(int position) { return position >> 1; }
__device__ __forceinline__ int farther(int position) { return (position >> 1) + ((position & 1) != 0 ? 1 : -1); }

// Channels of a part, from `channel`, at its own pixels. The caller keeps rows and columns inside.
template <int kChannels, typename T>
struct PartReader {
  const T* data;  // of the image and channel
  int64_t row_stride;
  int channels;

  __device__ __forceinline__ PartReader(const BlockPart<T>& part, int64_t image, int channel)
      : data(part.data + image * part.height * part.width * part.channels + channel),
        row_stride(static_cast<int64_t>(part.width) * part.channels),
        channels(part.channels) {}

  __device__ __forceinline__ Numbers<kChannels> at(int y, int x) const {
    return load_channels<kChannels>(data + y * row_stride + static_cast<int64_t>(x) * channels);
  }
};

template <int kChannels>
struct Pair {
  Numbers<kChannels> left, right;
};

// Columns 2 pair - 1 and 2 pair of a row inside the image, before norm and gate; anything where a column is outside.
template <Resample kResample, int kChannels, typename T>
__device__ __forceinline__ Pair<kChannels> load_pair(const BlockPart<T>& part, const PartReader<kChannels, T>& from,
                                                     int y, int pair, int width) {
  if constexpr (kResample == Resample::kUp) {
    const int near = within(nearer(y), part.height), far = within(farther(y), part.height);
    const int left = within(pair - 1, part.width), right = within(pair, part.width);
    const auto first = blend(from.at(near, left), from.at(far, left));
    const auto second = blend(from.at(near, right), from.at(far, right));
    return {blend(first, second), blend(second, first)};
  } else {
    const int left = within(2 * pair - 1, width), right = within(2 * pair, width);
    if constexpr (kResample == Resample::kPool) {
      const auto pooled = [&](int x) {
        return mean_of_four(from.at(2 * y, 2 * x), from.at(2 * y, 2 * x + 1), from.at(2 * y + 1, 2 * x),
                            from.at(2 * y + 1, 2 * x + 1));
      };
      return {pooled(left), pooled(right)};
    } else {
      return {from.at(y, left), from.at(y, right)};
    }
  }
}

// One pixel inside the image, before norm and gate.
template <int kChannels, typename T>
__device__ __forceinline__ Numbers<kChannels> load_pixel(const BlockPart<T>& part,
                                                         const PartReader<kChannels, T>& from, int y, int x) {
  if (part.resample == Resample::kUp) {
    const int near = within(nearer(y), part.height), far = within(farther(y), part.height);
    const int left = within(nearer(x), part.width), right = within(farther(x), part.width);
    return blend(blend(from.at(near, left), from.at(far, left)), blend(from.at(near, right), from.at(far, right)));
  }
  if (part.resample == Resample::kPool)
    return mean_of_four(from.at(2 * y, 2 * x), from.at(2 * y, 2 * x + 1), from.at(2 * y + 1, 2 * x),
                        from.at(2 * y + 1, 2 * x + 1));
  return from.at(y, x);
}

// PReLU, by a choice of factors: a choice of results makes branches.
__device__ __forceinline__ float gated(float value, float slope) { return value * (value > 0 ? 1.0f : slope); }

// Norm and gate of a few channels of an image.
template <int kChannels>
struct Activation {
  Numbers<kChannels> mean, factor, slope;

  template <typename T>
  __device__ __forceinline__ Activation(const BlockView<T>& view, int64_t image, int channel) {
    const float* const norm = view.norm + image * view.channels + channel;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      mean.at[i] = view.norm == nullptr ? 0.0f : norm[i];
      factor.at[i] = view.norm == nullptr ? 1.0f : norm[view.batch * view.channels + i];
      slope.at[i] = view.slope == nullptr ? 1.0f : to_number(view.slope[channel + i]);
    }
  }

  __device__ __forceinline__ Numbers<kChannels> of(const Numbers<kChannels>& value) const {
    Numbers<kChannels> out;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) out.at[i] = gated((value.at[i] - mean.at[i]) * factor.at[i], slope.at[i]);
    return out;
  }
};

// Whether all parts can be read kChannelsOf<T> at a time.
template <typename T>
bool has_aligned_channels(const BlockView<T>& view) {
  const auto aligned = [](const BlockPart<T>& part) {
    return part.channels % kChannelsOf<T> == 0 && reinterpret_cast<uintptr_t>(part.data) % 16 == 0;
  };
  return aligned(view.x) && aligned(view.skip);
}

inline int pairs_of_row(int width) { return width / 2 + 1; }

}  // namespace disk_ops
