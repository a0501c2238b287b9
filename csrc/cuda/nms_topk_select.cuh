// The n best of lists of keys: radix selection, then a bitonic sort of those selected.
#pragma once

#include "launch.cuh"
#include "nms_topk_kernel.h"
#include "number.cuh"

namespace disk_ops {

constexpr int kSelectThreads = 1024;
constexpr int kDigitBits = 11;  // the first three digits of a float's key are all of its score
constexpr int kDigits = 1 << kDigitBits;
constexpr int kSortBytes = 32 << 10;  // of keys that a block sorts in shared memory
constexpr int kSortThreads = 1024;

DISK_HD bool operator<(const WideKey& a, const WideKey& b) {
  return a.score < b.score || (a.score == b.score && a.pixel < b.pixel);
}

template <typename Word>
DISK_HD constexpr int digits_of_word() {
  return (static_cast<int>(sizeof(Word)) * 8 + kDigitBits - 1) / kDigitBits;
}

// The digit at `level` of a word, level 0 being the most significant: its lowest bit, and how many values it has.
template <typename Word>
DISK_HD int digit_shift(int level) {
  const int shift = static_cast<int>(sizeof(Word)) * 8 - kDigitBits * (level + 1);
  return shift < 0 ? 0 : shift;
}
template <typename Word>
DISK_HD Word digit_mask(int level) {
  const int bits = static_cast<int>(sizeof(Word)) * 8 - kDigitBits * level;
  return (static_cast<Word>(1) << (bits < kDigitBits ? bits : kDigitBits)) - 1;
}
template <typename Word>
DISK_HD int word_digit(Word word, int level) {
  return static_cast<int>(word >> digit_shift<Word>(level) & digit_mask<Word>(level));
}
template <typename Word>
DISK_HD void set_word_digit(Word& word, int level, int digit) {
  const int shift = digit_shift<Word>(level);
  word = (word & ~(digit_mask<Word>(level) << shift)) | static_cast<Word>(digit) << shift;
}

// Keys as strings of digits.
template <typename Key>
struct KeyDigits {
  static constexpr int levels = digits_of_word<Key>();
  static DISK_HD Key lowest() { return 0; }
  static DISK_HD Key highest() { return ~static_cast<Key>(0); }
  static DISK_HD uint32_t pixel(Key key) { return static_cast<uint32_t>(key); }
  static DISK_HD int get(Key key, int level) { return word_digit(key, level); }
  static DISK_HD void set(Key& key, int level, int digit) { set_word_digit(key, level, digit); }
};
template <>
struct KeyDigits<WideKey> {
  static constexpr int score_levels = digits_of_word<uint64_t>();
  static constexpr int levels = score_levels + digits_of_word<uint32_t>();
  static DISK_HD WideKey lowest() { return {0u, 0u, 0u}; }
  static DISK_HD WideKey highest() { return {~static_cast<uint64_t>(0), ~0u, 0u}; }
  static DISK_HD uint32_t pixel(const WideKey& key) { return key.pixel; }
  static DISK_HD int get(const WideKey& key, int level) {
    return level < score_levels ? word_digit(key.score, level) : word_digit(key.pixel, level - score_levels);
  }
  static DISK_HD void set(WideKey& key, int level, int digit) {
    if (level < score_levels) {
      set_word_digit(key.score, level, digit);
    } else {
      set_word_digit(key.pixel, level - score_levels, digit);
    }
  }
};

// Adds 1 to histogram[digit] where active. The digit of a warp's first active lane, often that of most lanes, is
// added once for all of them.
__device__ __forceinline__ void count_digit(int* histogram, int digit, bool active) {
  const unsigned members = __ballot_sync(~0u, active);
  if (members == 0) return;
  const int leader = __ffs(static_cast<int>(members)) - 1;
  const int common = __shfl_sync(~0u, digit, leader);
  const unsigned same = __ballot_sync(~0u, active && digit == common);
  if (static_cast<int>(threadIdx.x % 32) == leader) {
    atomicAdd(&histogram[common], __popc(same));
  } else if (active && digit != common) {
    atomicAdd(&histogram[digit], 1);
  }
}

struct DigitChoice {
  int digit, before, count;  // keys with smaller digits, keys with this digit
};

// The digit of the `wanted`-th smallest key (from 1) of a histogram. `choice` and `warp_sums` are shared.
__device__ __forceinline__ void choose_digit(const int* histogram, int wanted, int* warp_sums, DigitChoice& choice) {
  const int thread = threadIdx.x, lane = thread % 32, per_thread = kDigits / static_cast<int>(blockDim.x);
  const int* const mine = histogram + thread * per_thread;
  int sum = 0;
  for (int i = 0; i < per_thread; ++i) sum += mine[i];
  int before = sum;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) warp_sums[thread / 32] = before;
  __syncthreads();
  before -= sum;
  for (int warp = 0; warp < thread / 32; ++warp) before += warp_sums[warp];
  for (int i = 0; i < per_thread; ++i) {
    const int count = mine[i];
    if (before < wanted && wanted <= before + count) choice = {thread * per_thread + i, before, count};
    before += count;
  }
  __syncthreads();
}

// Calls use(key, is_there) for `count` keys, in whole warps; several loads are under way at a time.
template <typename Key, typename Use>
__device__ __forceinline__ void for_each_key(const Key* __restrict__ keys, int count, Use use) {
  constexpr int kAtATime = 4;
  const int threads = blockDim.x;
  for (int64_t first = threadIdx.x; first - threadIdx.x < count; first += kAtATime * threads) {
    Key key[kAtATime];
#pragma unroll
    for (int i = 0; i < kAtATime; ++i)
      key[i] = first + i * threads < count ? keys[first + i * threads] : KeyDigits<Key>::highest();
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) use(key[i], first + i * threads < count);
  }
}

// One block for each image: moves its `slots` smallest keys to the front of `selected`, unordered, and fills up with
// keys above all others. The threads must be a power of two and at least a warp.
template <typename Key>
__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(const Key* __restrict__ keys,    // [B, capacity]
                  const int* __restrict__ counts,  // [B]
                  int64_t capacity,
                  Key* __restrict__ selected,  // [B, padded]
                  int64_t padded, int slots) {
  using Digits = KeyDigits<Key>;
  __shared__ int histogram[kDigits], warp_sums[32], taken;
  __shared__ DigitChoice choice;
  const int count = counts[blockIdx.x], thread = threadIdx.x, threads = blockDim.x;
  const Key* const from = keys + blockIdx.x * capacity;
  Key* const to = selected + blockIdx.x * padded;

  // Keys from `low` to `high` share the digits chosen so far.
  Key low = Digits::lowest(), high = Digits::highest();
  int wanted = slots;
  for (int level = 0; count > slots && level < Digits::levels; ++level) {
    for (int i = thread; i < kDigits; i += threads) histogram[i] = 0;
    __syncthreads();
    for_each_key(from, count, [&](const Key& key, bool is_there) {
      count_digit(histogram, Digits::get(key, level), is_there && !(key < low) && !(high < key));
    });
    __syncthreads();
    choose_digit(histogram, wanted, warp_sums, choice);
    Digits::set(low, level, choice.digit);
    Digits::set(high, level, choice.digit);
    wanted -= choice.before;
    if (wanted == choice.count) break;  // all keys with these digits are wanted
  }

  if (thread == 0) taken = 0;
  __syncthreads();
  for_each_key(from, count, [&](const Key& key, bool is_there) {
    const bool take = is_there && !(high < key);
    const unsigned takers = __ballot_sync(~0u, take);
    int place = 0;
    if (thread % 32 == 0 && takers != 0) place = atomicAdd(&taken, __popc(takers));
    place = __shfl_sync(~0u, place, 0) + __popc(takers & ((1u << thread % 32) - 1));
    if (take) to[place] = key;
  });
  for (int64_t i = (count < slots ? count : slots) + thread; i < padded; i += threads) to[i] = Digits::highest();
}

template <typename Key>
__device__ __forceinline__ void order_pair(Key& a, Key& b, bool ascending) {
  if (ascending ? b < a : a < b) {
    const Key swapped = a;
    a = b, b = swapped;
  }
}

// The first of the `pair`-th two elements that are `stride`, a power of two, apart.
DISK_HD int64_t first_of_pair(int64_t pair, int64_t stride) { return 2 * pair - (pair & (stride - 1)); }

// Bitonic merges of sizes `first_size` to `last_size`, as far as they stay within a block's `chunk` elements.
template <typename Key>
__global__ void __launch_bounds__(kSortThreads)
    sort_chunks_kernel(Key* keys, int64_t padded, int chunk, int64_t first_size, int64_t last_size) {  // [B, padded]
  DISK_DYNAMIC_SHARED(Key, sorted);  // [chunk]
  Key* const mine = keys + static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * chunk & (padded - 1);
  for (int i = threadIdx.x; i < chunk; i += blockDim.x) sorted[i] = mine[i];
  __syncthreads();
  for (int64_t size = first_size; size <= last_size; size *= 2) {
    for (int stride = static_cast<int>(size < chunk ? size : chunk) / 2; stride > 0; stride /= 2) {
      for (int pair = threadIdx.x; pair < chunk / 2; pair += blockDim.x) {
        const int i = static_cast<int>(first_of_pair(pair, stride));
        order_pair(sorted[i], sorted[i + stride], ((offset + i) & size) == 0);
      }
      __syncthreads();
    }
  }
  for (int i = threadIdx.x; i < chunk; i += blockDim.x) mine[i] = sorted[i];
}

// One step of a bitonic merge, of elements further apart than a chunk.
template <typename Key>
__global__ void __launch_bounds__(256)
    merge_far_kernel(Key* keys, int64_t padded, int64_t pairs, int64_t size, int64_t stride) {  // [B, padded]
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t pair = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; pair < pairs; pair += step) {
    const int64_t i = first_of_pair(pair, stride);
    order_pair(keys[i], keys[i + stride], (i & (padded - 1) & size) == 0);
  }
}

template <typename T>
__global__ void __launch_bounds__(256)
    write_maxima_kernel(HeatmapView<T> view,
                        const MaximumKey<T>* __restrict__ sorted,  // [B, padded]
                        const int* __restrict__ counts,            // [B]
                        int64_t padded, int slots, int64_t n,
                        int64_t* __restrict__ keypoints,  // [B, n, 2]
                        T* __restrict__ scores,           // [B, n]
                        bool* __restrict__ valid) {       // [B, n]
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < view.batch * n; i += step) {
    const int64_t b = i / n, slot = i - b * n;
    const bool found = slot < slots && slot < counts[b];
    int x = 0, y = 0;
    T score{};
    if (found) {
      const int pixel = static_cast<int>(KeyDigits<MaximumKey<T>>::pixel(sorted[b * padded + slot]));
      y = pixel / view.width, x = pixel - y * view.width;
      score = view.heatmap[b * view.batch_stride + y * view.y_stride + x * view.x_stride];
    }
    keypoints[2 * i] = x, keypoints[2 * i + 1] = y;
    scores[i] = score, valid[i] = found;
  }
}

}  // namespace disk_ops
