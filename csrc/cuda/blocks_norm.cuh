// The statistics of a block's input, which is not stored.
//
// A block of threads has a run of pairs of pixels of one image: its threads lie along channels, then along pairs, so
// that neighbours read neighbours. It takes its run's sums of differences from one of the run's own pixels: squares of
// values far from 0 would leave no digits. A second kernel joins the runs in float64.
#pragma once

#include <algorithm>

#include "blocks_input.cuh"
#include "warp_sum.cuh"

namespace disk_ops {

constexpr int kMostRuns = 2048;   // of an image: enough to keep a GPU busy, few enough to be joined quickly
constexpr int kFewestPairs = 64;  // of a run
constexpr double kBlockEpsilon = 1e-5;

// The runs of pairs that blocks of threads take.
struct PairRuns {
  int width;      // of the image
  int row_pairs;  // pairs in a row
  int pairs;      // of an image
  int length, count;

  PairRuns(int height, int width)
      : width(width), row_pairs(pairs_of_row(width)), pairs(height * row_pairs), length(0), count(0) {
    length = std::max(kFewestPairs, (pairs - 1) / kMostRuns + 1);
    count = (pairs - 1) / length + 1;
  }
  DISK_HD int pixels_before(int pair) const {
    const int column = pair % row_pairs;
    return pair / row_pairs * width + (column == 0 ? 0 : 2 * column - 1);
  }
  DISK_HD int end(int run) const { return run == count - 1 ? pairs : (run + 1) * length; }
  DISK_HD int pixels(int run) const { return pixels_before(end(run)) - pixels_before(run * length); }
};

int block_parts(int height, int width) { return PairRuns(height, width).count; }

// What a thread has: a group of channels, and every so many of the pairs of a run.
template <int kChannels>
struct PairThread {
  int64_t image;
  int run, channel, lane, lanes, side;  // side: threads along channels
  bool is_used;

  __device__ __forceinline__ PairThread(const PairRuns& runs, int channels) {
    const int groups = channels / kChannels, thread = threadIdx.x;
    side = smaller(groups, kBlockThreads), lanes = kBlockThreads / side, lane = thread / side;
    image = blockIdx.x / static_cast<unsigned>(runs.count);
    run = static_cast<int>(blockIdx.x % static_cast<unsigned>(runs.count));
    const int group = static_cast<int>(blockIdx.y) * kBlockThreads + thread % side;
    channel = group * kChannels;
    is_used = lane < lanes && group < groups;
  }
  static dim3 grid(const PairRuns& runs, int64_t batch, int channels) {
    const int groups = channels / kChannels;
    return dim3(static_cast<unsigned>(batch * runs.count), static_cast<unsigned>((groups - 1) / kBlockThreads + 1));
  }
};

// Calls use(row, pair) for the thread's pairs.
template <int kChannels, typename Use>
__device__ __forceinline__ void for_each_pair(const PairRuns& runs, const PairThread<kChannels>& mine, const Use& use) {
  const int end = runs.end(mine.run);
  for (int i = mine.run * runs.length + mine.lane; i < end; i += mine.lanes) {
    const int row = i / runs.row_pairs;
    use(row, i - row * runs.row_pairs);
  }
}

template <int kChannels>
struct Sums {
  Numbers<kChannels> value{}, square{};
};

// Adds up the sums of a block's threads that have the same channels; those of lane 0 are the result.
template <int kChannels>
__device__ __forceinline__ void add_lanes(const PairThread<kChannels>& mine, Sums<kChannels>& sums) {
  __shared__ float shared[2][kChannels][kBlockThreads];
  const int thread = threadIdx.x;
  for (int left = mine.lanes; left > 1;) {
    const int half = (left + 1) / 2;
    if (mine.is_used && mine.lane >= half && mine.lane < left)
#pragma unroll
      for (int i = 0; i < kChannels; ++i)
        shared[0][i][thread] = sums.value.at[i], shared[1][i][thread] = sums.square.at[i];
#if !defined(DISK_PLANT_MISSING_BARRIER)
    __syncthreads();
#endif
    if (mine.is_used && mine.lane + half < left)
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        sums.value.at[i] += shared[0][i][thread + half * mine.side];
        sums.square.at[i] += shared[1][i][thread + half * mine.side];
      }
    left = half;  // what is stored next isn't what is being read now
  }
}

template <Resample kResample, int kChannels, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    block_moments_kernel(BlockPart<T> part, int all_channels, PairRuns runs,
                         Moments* __restrict__ moments) {  // [B, all_channels, runs]
  const PairThread<kChannels> mine(runs, part.channels);
  Sums<kChannels> sums;
  Numbers<kChannels> pivot{};
  if (mine.is_used) {
    const PartReader<kChannels, T> from(part, mine.image, mine.channel);
    const int first = mine.run * runs.length, column = first % runs.row_pairs;
    const auto there = load_pair<kResample>(part, from, first / runs.row_pairs, column, runs.width);
    pivot = column > 0 ? there.left : there.right;
    for_each_pair(runs, mine, [&](int row, int pair) {
      const auto values = load_pair<kResample>(part, from, row, pair, runs.width);
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const float left = pair > 0 ? values.left.at[i] - pivot.at[i] : 0.0f;
        const float right = 2 * pair < runs.width ? values.right.at[i] - pivot.at[i] : 0.0f;
        sums.value.at[i] += left + right;
        sums.square.at[i] = fmaf(left, left, fmaf(right, right, sums.square.at[i]));
      }
    });
  }
  add_lanes(mine, sums);
  if (!mine.is_used || mine.lane != 0) return;
  const double pixels = runs.pixels(mine.run);
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    const double sum = static_cast<double>(sums.value.at[i]), square = static_cast<double>(sums.square.at[i]);
    const int64_t row = mine.image * all_channels + part.first + mine.channel + i;
    moments[row * runs.count + mine.run] = {static_cast<double>(pivot.at[i]) + sum / pixels,
                                            square - sum * sum / pixels};
  }
}

// One warp for each channel of an image.
__global__ void __launch_bounds__(kBlockThreads)
    block_norm_kernel(const Moments* __restrict__ moments, int64_t rows, PairRuns runs,
                      float* __restrict__ norm) {  // moments [rows, runs], norm [2, rows]
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kBlockThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const Moments* const mine = moments + row * runs.count;
  const double pixels = runs.pixels_before(runs.pairs);
  double sum = 0;
  for (int run = lane; run < runs.count; run += 32) sum += mine[run].mean * runs.pixels(run);
  const double mean = warp_sum(sum) / pixels;
  double deviations = 0;
  for (int run = lane; run < runs.count; run += 32) {
    const double offset = mine[run].mean - mean;
    deviations += mine[run].deviations + offset * offset * runs.pixels(run);
  }
  const double spread = warp_sum(deviations) / pixels, variance = spread < 0 ? 0.0 : spread;  // NaN stays
  if (lane != 0) return;
  norm[row] = static_cast<float>(mean);
  norm[rows + row] = static_cast<float>(1 / sqrt(variance + kBlockEpsilon));
}

template <int kChannels, typename T>
void start_block_moments(const BlockPart<T>& part, const BlockView<T>& view, const PairRuns& runs, Moments* moments,
                         cudaStream_t stream) {
  if (part.channels == 0) return;
  const dim3 grid = PairThread<kChannels>::grid(runs, view.batch, part.channels), threads(kBlockThreads);
  switch (part.resample) {
    case Resample::kUp:
      DISK_LAUNCH((block_moments_kernel<Resample::kUp, kChannels, T>), grid, threads, 0, stream)
      (part, view.channels, runs, moments);
      break;
    case Resample::kPool:
      DISK_LAUNCH((block_moments_kernel<Resample::kPool, kChannels, T>), grid, threads, 0, stream)
      (part, view.channels, runs, moments);
      break;
    case Resample::kNone:
      DISK_LAUNCH((block_moments_kernel<Resample::kNone, kChannels, T>), grid, threads, 0, stream)
      (part, view.channels, runs, moments);
  }
}

template <typename T>
cudaError_t launch_block_norm(const BlockView<T>& view, Moments* moments, float* norm, cudaStream_t stream) {
  const int64_t rows = view.batch * view.channels;
  if (rows == 0) return cudaSuccess;
  const PairRuns runs(view.height, view.width);
  const BlockPart<T> parts[] = {view.x, view.skip};
  for (const BlockPart<T>& part : parts) {
    if (has_aligned_channels(view)) {
      start_block_moments<kChannelsOf<T>>(part, view, runs, moments, stream);
    } else {
      start_block_moments<1>(part, view, runs, moments, stream);
    }
  }
  const int64_t blocks = (rows - 1) / (kBlockThreads / 32) + 1;
  DISK_LAUNCH((block_norm_kernel), dim3(static_cast<unsigned>(blocks)), dim3(kBlockThreads), 0, stream)
  (moments, rows, runs, norm);
  return cudaGetLastError();
}

}  // namespace disk_ops
