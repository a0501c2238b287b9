// What kernels call: barriers, warp shuffles and votes, atomics. The second half of cuda_emu.h, which includes it.
#pragma once

namespace cuda_emu {

template <class T>
T exchange(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
  Quiet q;
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  warp().slot[lane()] = bits;
  warp_wait(mask);
  std::memcpy(&value, &warp().slot[source & 31], sizeof(T));
  warp_wait(mask);
  return value;
}

inline unsigned ballot(unsigned mask, bool predicate) {
  Quiet q;
  Warp& w = warp();
  const unsigned live = mask & w.alive;
  w.slot[lane()] = predicate;
  warp_wait(mask);
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i)
    if ((live >> i & 1u) != 0) votes |= static_cast<unsigned>(w.slot[i]) << i;
  warp_wait(mask);
  return votes;
}

template <class T, class Change>
T atomically(T* address, Change change) {
  T old, desired;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do {
    desired = change(old);
  } while (!__atomic_compare_exchange(address, &old, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

}  // namespace cuda_emu

inline void __syncthreads() { cuda_emu::block_wait(); }
inline int __syncthreads_or(int predicate) { return cuda_emu::block_wait(predicate != 0).out_any; }
inline int __syncthreads_and(int predicate) { return cuda_emu::block_wait(predicate != 0).out_all; }
inline int __syncthreads_count(int predicate) { return cuda_emu::block_wait(predicate != 0).out_count; }
inline void __syncwarp(unsigned mask = ~0u) { cuda_emu::warp_wait(mask); }
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return cuda_emu::exchange(mask, value, (cuda_emu::lane() & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int = 32) {
  return cuda_emu::exchange(mask, value, cuda_emu::lane() ^ bits);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_emu::lane(), step = static_cast<int>(delta);
  return cuda_emu::exchange(mask, value, (lane & (width - 1)) + step < width ? lane + step : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_emu::lane(), step = static_cast<int>(delta);
  return cuda_emu::exchange(mask, value, (lane & (width - 1)) >= step ? lane - step : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return cuda_emu::ballot(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return cuda_emu::ballot(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return cuda_emu::ballot(mask, predicate == 0) == 0; }
template <class T>
T atomicAdd(T* address, T value) {
  return cuda_emu::atomically(address, [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMin(T* address, T value) {
  return cuda_emu::atomically(address, [&](T old) { return std::min(old, value); });
}
template <class T>
T atomicMax(T* address, T value) {
  return cuda_emu::atomically(address, [&](T old) { return std::max(old, value); });
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
