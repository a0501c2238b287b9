// The kernels of blocks_kernel.h and their launchers: here activation and patches, statistics and heatmap in headers of
// their own.
#pragma once

#include <algorithm>

#include "blocks_head.cuh"
#include "blocks_input.cuh"
#include "blocks_norm.cuh"

namespace disk_ops {

constexpr int kPatchSide = 5;

// Threads are laid out as for the statistics.
template <Resample kResample, int kChannels, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    block_activation_kernel(BlockView<T> view, BlockPart<T> part, PairRuns runs,
                            T* __restrict__ result) {  // [B, H, W, C]
  const PairThread<kChannels> mine(runs, part.channels);
  if (!mine.is_used) return;
  const int channel = part.first + mine.channel;
  const PartReader<kChannels, T> from(part, mine.image, mine.channel);
  const Activation<kChannels> activation(view, mine.image, channel);
  for_each_pair(runs, mine, [&](int row, int pair) {
    const auto values = load_pair<kResample>(part, from, row, pair, view.width);
    const int64_t pixel = (mine.image * view.height + row) * view.width + 2 * pair;
    T* const to = result + pixel * view.channels + channel;
    if (pair > 0) store_channels(to - view.channels, activation.of(values.left));
    if (2 * pair < view.width) store_channels(to, activation.of(values.right));
  });
}

// One block for each keypoint.
template <int kChannels, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    block_patches_kernel(BlockView<T> view, const int64_t* __restrict__ keypoints, int64_t count,
                         T* __restrict__ patches) {  // keypoints [B, count, 2], patches [B, count, 5, 5, C]
  const int groups = view.channels / kChannels;
  for (int64_t row = blockIdx.x; row < view.batch * count; row += gridDim.x) {
    const int64_t image = row / count;
    const int left = static_cast<int>(smaller<int64_t>(larger<int64_t>(keypoints[2 * row], 0), view.width - 1)) - 2;
    const int top = static_cast<int>(smaller<int64_t>(larger<int64_t>(keypoints[2 * row + 1], 0), view.height - 1)) - 2;
    for (int place = threadIdx.x; place < kPatchSide * kPatchSide * groups; place += kBlockThreads) {
      const int channel = place % groups * kChannels, offset = place / groups;
      const int y = top + offset / kPatchSide, x = left + offset % kPatchSide;
      Numbers<kChannels> value{};
      if (y >= 0 && y < view.height && x >= 0 && x < view.width) {
        const BlockPart<T> part = channel < view.x.channels ? view.x : view.skip;
        const PartReader<kChannels, T> from(part, image, channel - part.first);
        value = Activation<kChannels>(view, image, channel).of(load_pixel(part, from, y, x));
      }
      const int64_t pixel = row * kPatchSide * kPatchSide + offset;
      store_channels(patches + pixel * view.channels + channel, value);
    }
  }
}

template <int kChannels, typename T>
void start_block_activation(const BlockPart<T>& part, const BlockView<T>& view, T* result, cudaStream_t stream) {
  if (part.channels == 0) return;
  const PairRuns runs(view.height, view.width);
  const dim3 grid = PairThread<kChannels>::grid(runs, view.batch, part.channels), threads(kBlockThreads);
  switch (part.resample) {
    case Resample::kUp:
      DISK_LAUNCH((block_activation_kernel<Resample::kUp, kChannels, T>), grid, threads, 0, stream)
      (view, part, runs, result);
      break;
    case Resample::kPool:
      DISK_LAUNCH((block_activation_kernel<Resample::kPool, kChannels, T>), grid, threads, 0, stream)
      (view, part, runs, result);
      break;
    case Resample::kNone:
      DISK_LAUNCH((block_activation_kernel<Resample::kNone, kChannels, T>), grid, threads, 0, stream)
      (view, part, runs, result);
  }
}

template <typename T>
cudaError_t launch_block_activation(const BlockView<T>& view, T* activation, cudaStream_t stream) {
  if (view.batch == 0) return cudaSuccess;
  const BlockPart<T> parts[] = {view.x, view.skip};
  for (const BlockPart<T>& part : parts) {
    if (has_aligned_channels(view)) {
      start_block_activation<kChannelsOf<T>>(part, view, activation, stream);
    } else {
      start_block_activation<1>(part, view, activation, stream);
    }
  }
  return cudaGetLastError();
}

template <int kChannels, typename T>
void start_block_patches(const BlockView<T>& view, const int64_t* keypoints, int64_t count, T* patches,
                         cudaStream_t stream) {
  const int64_t blocks = std::min<int64_t>(view.batch * count, INT32_MAX);
  DISK_LAUNCH((block_patches_kernel<kChannels, T>), dim3(static_cast<unsigned>(blocks)), dim3(kBlockThreads), 0, stream)
  (view, keypoints, count, patches);
}

template <typename T>
cudaError_t launch_block_patches(const BlockView<T>& view, const int64_t* keypoints, int64_t count, T* patches,
                                 cudaStream_t stream) {
  if (view.batch * count * view.channels == 0) return cudaSuccess;
  if (has_aligned_channels(view)) {
    start_block_patches<kChannelsOf<T>>(view, keypoints, count, patches, stream);
  } else {
    start_block_patches<1>(view, keypoints, count, patches, stream);
  }
  return cudaGetLastError();
}

// One translation unit instantiates this for every element type.
#define DISK_INSTANTIATE_BLOCKS(T)                                                                                  \
  template cudaError_t launch_block_norm<T>(const BlockView<T>&, Moments*, float*, cudaStream_t);                   \
  template cudaError_t launch_block_activation<T>(const BlockView<T>&, T*, cudaStream_t);                           \
  template cudaError_t launch_block_patches<T>(const BlockView<T>&, const int64_t*, int64_t, T*, cudaStream_t);     \
  template cudaError_t launch_block_head<T>(const BlockView<T>&, const T*, const T*, float*, cudaStream_t);

}  // namespace disk_ops
