// The 5 x 5 convolution of a block's input to one output: the heatmap of the network, in float32 from any input.
//
// A block of threads walks down a strip of 64 columns, 8 rows at a time. A warp has a row, a lane a pair of pixels, for
// which it sums over channels what each of the 25 taps sees of it: values are computed where they are multiplied and
// never stored. Sums move to their output along a row by shuffles, and from row to row through a ring in shared memory.
#pragma once

#include "blocks_input.cuh"

namespace disk_ops {

constexpr int kHeadWarps = kBlockThreads / 32;
constexpr int kHeadSteps = 4;                               // of a strip
constexpr int kHeadRows = kHeadWarps * kHeadSteps - 4;      // that a strip gives: it reads 4 more
constexpr int kHeadPairs = 32 - 2, kHeadColumns = 2 * kHeadPairs;  // that it gives
constexpr int kHeadRing = kHeadWarps + 4;                   // rows: those of a step, and the last 4 of the step before

constexpr int kHeadChannels = 4;  // at a time: sums leave no registers for 8 of a half type

// What is needed of a channel, in loads of 16 bytes: 25 taps, mean, factor, slope.
using HeadQuad = Channels<float, 4>;
struct HeadChannel {
  HeadQuad quad[7];
};

struct HeadRow {
  float sum[5][64];  // of each row of taps, moved to the output's column
};

struct HeadSums {
  float left[25] = {}, right[25] = {};  // of the pair's pixels
};

template <typename T>
__device__ __forceinline__ void fill_head_channels(const BlockView<T>& view, int64_t image, const T* weight,
                                                   HeadChannel* channels) {  // weight [C, 5, 5], channels [C]
#pragma unroll 1
  for (int place = threadIdx.x; place < view.channels * 28; place += kBlockThreads) {
    const int channel = place / 28, entry = place % 28;
    float& number = channels[channel].quad[entry / 4].at[entry % 4];
    if (entry < 25) {
      number = to_number(weight[channel * 25 + entry]);
    } else {
      const Activation<1> activation(view, image, channel);
      number = (entry == 25 ? activation.mean : entry == 26 ? activation.factor : activation.slope).at[0];
    }
  }
}

__device__ __forceinline__ float head_activation(const HeadQuad& channel, float value) {
  return gated((value - channel.at[1]) * channel.at[2], channel.at[3]);
}

// Adds a part's channels; `row` is inside the image. Sums at columns outside of it are to be thrown away.
template <Resample kResample, int kChannels, typename T>
__device__ __forceinline__ void add_taps(const BlockPart<T>& part, int64_t image, int row, int pair, int width,
                                         const HeadChannel* channels, HeadSums& sums) {  // channels [C]
#pragma unroll 1
  for (int first = 0; first < part.channels; first += kChannels) {
    const PartReader<kChannels, T> from(part, image, first);
    const auto values = load_pair<kResample>(part, from, row, pair, width);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const HeadChannel& channel = channels[part.first + first + i];
      const HeadQuad last = channel.quad[6];  // the 25th tap, mean, factor, slope
      const float left = head_activation(last, values.left.at[i]);
      const float right = head_activation(last, values.right.at[i]);
#pragma unroll
      for (int quad = 0; quad < 6; ++quad) {
        const HeadQuad taps = channel.quad[quad];
#pragma unroll
        for (int tap = 0; tap < 4; ++tap) {
          sums.left[4 * quad + tap] = fmaf(left, taps.at[tap], sums.left[4 * quad + tap]);
          sums.right[4 * quad + tap] = fmaf(right, taps.at[tap], sums.right[4 * quad + tap]);
        }
      }
      sums.left[24] = fmaf(left, last.at[0], sums.left[24]);
      sums.right[24] = fmaf(right, last.at[0], sums.right[24]);
    }
  }
}

__device__ __forceinline__ void clear_outside(int pair, int width, HeadSums& sums) {
  const bool has_left = pair > 0 && 2 * pair - 1 < width, has_right = pair >= 0 && 2 * pair < width;
#pragma unroll
  for (int tap = 0; tap < 25; ++tap) {
    sums.left[tap] = has_left ? sums.left[tap] : 0.0f;
    sums.right[tap] = has_right ? sums.right[tap] : 0.0f;
  }
}

// Adds up each row of taps at the output's columns. The first and last lane lack a neighbour: theirs count for nothing.
__device__ __forceinline__ void store_head_row(const HeadSums& sums, HeadRow& row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int v = 0; v < 5; ++v) {
    const float* const left = sums.left + 5 * v;
    const float* const right = sums.right + 5 * v;
    const float left_from_before = __shfl_up_sync(~0u, left[0] + right[1], 1);
    const float left_from_after = __shfl_down_sync(~0u, left[4], 1);
    const float right_from_before = __shfl_up_sync(~0u, right[0], 1);
    const float right_from_after = __shfl_down_sync(~0u, left[3] + right[4], 1);
    row.sum[v][2 * lane] = (left_from_before + left[2]) + (right[3] + left_from_after);
    row.sum[v][2 * lane + 1] = (right_from_before + left[1]) + (right[2] + right_from_after);
  }
}

template <Resample kResample, int kChannels, typename T>
__global__ void __launch_bounds__(kBlockThreads, 2)
    block_head_kernel(BlockView<T> view, int strips, int strips_of_row, const T* __restrict__ weight,
                      const T* __restrict__ bias, float* __restrict__ heatmap) {  // [C, 5, 5], [1], [B, H, W]
  DISK_DYNAMIC_SHARED(HeadChannel, channels);
  __shared__ HeadRow ring[kHeadRing];
  const int64_t image = blockIdx.x / static_cast<unsigned>(strips);
  const int strip = static_cast<int>(blockIdx.x % static_cast<unsigned>(strips));
  const int top = strip / strips_of_row * kHeadRows, first_pair = strip % strips_of_row * kHeadPairs - 1;
  fill_head_channels(view, image, weight, channels);
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float offset = to_number(bias[0]);
#pragma unroll 1
  for (int step = 0; step < kHeadSteps; ++step) {
    const int number = step * kHeadWarps + warp, row = top - 2 + number;
    HeadSums sums;
    if (row >= 0 && row < view.height) {
      const int pair = first_pair + lane;
      add_taps<kResample, kChannels>(view.x, image, row, pair, view.width, channels, sums);
      add_taps<Resample::kNone, kChannels>(view.skip, image, row, pair, view.width, channels, sums);
      clear_outside(pair, view.width, sums);
    }
    store_head_row(sums, ring[number % kHeadRing]);
    __syncthreads();

    // Outputs whose last row of taps has just been seen.
    const int first = step == 0 ? 0 : step * kHeadWarps - 4, end = step * kHeadWarps + kHeadWarps - 4;
    const int place = threadIdx.x % 64, x = 2 * first_pair - 1 + place;
    for (int out = first + static_cast<int>(threadIdx.x) / 64; out < end; out += kBlockThreads / 64) {
      const int y = top + out;
      if (place < 2 || place >= 2 + kHeadColumns || x < 0 || x >= view.width || y >= view.height) continue;
      float sum = offset;
#pragma unroll
      for (int v = 0; v < 5; ++v) sum += ring[(out + v) % kHeadRing].sum[v][place];
      heatmap[(image * view.height + y) * view.width + x] = sum;
    }
    __syncthreads();
  }
}

struct HeadStrips {
  int down, across;
  HeadStrips(int height, int width)
      : down((height - 1) / kHeadRows + 1), across(width / kHeadColumns + 1) {}  // the first begins at column -1
};

int64_t block_head_tiles(int height, int width) {
  const HeadStrips strips(height, width);
  return static_cast<int64_t>(strips.down) * strips.across;
}

template <Resample kResample, int kChannels, typename T>
void start_block_head(const BlockView<T>& view, const T* weight, const T* bias, float* heatmap, cudaStream_t stream) {
  const HeadStrips strips(view.height, view.width);
  const int count = strips.down * strips.across;
  DISK_LAUNCH((block_head_kernel<kResample, kChannels, T>), dim3(static_cast<unsigned>(view.batch * count)),
              dim3(kBlockThreads), sizeof(HeadChannel) * static_cast<size_t>(view.channels), stream)
  (view, count, strips.across, weight, bias, heatmap);
}

template <int kChannels, typename T>
void start_block_head_of(const BlockView<T>& view, const T* weight, const T* bias, float* heatmap, cudaStream_t stream) {
  switch (view.x.resample) {
    case Resample::kUp: return start_block_head<Resample::kUp, kChannels>(view, weight, bias, heatmap, stream);
    // No network of ours has this one: read channel by channel, as 4 at a time take too many registers.
    case Resample::kPool: return start_block_head<Resample::kPool, 1>(view, weight, bias, heatmap, stream);
    case Resample::kNone: return start_block_head<Resample::kNone, kChannels>(view, weight, bias, heatmap, stream);
  }
}

template <typename T>
cudaError_t launch_block_head(const BlockView<T>& view, const T* weight, const T* bias, float* heatmap,
                              cudaStream_t stream) {
  if (view.batch == 0) return cudaSuccess;
  if (has_aligned_channels(view)) {
    start_block_head_of<kHeadChannels>(view, weight, bias, heatmap, stream);
  } else {
    start_block_head_of<1>(view, weight, bias, heatmap, stream);
  }
  return cudaGetLastError();
}

}  // namespace disk_ops
