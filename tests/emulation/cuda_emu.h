// Runs CUDA kernels on the host: one fiber per CUDA thread, one block at a time, on one OS thread.
//
// Has 3-D grids, static and dynamic shared memory, __syncthreads, warp shuffles and votes with partial masks, atomics;
// finds deadlocks; shuffles the order of threads (CUEMU_SEED or set_seed); tells AddressSanitizer and ThreadSanitizer
// about its fibers, so that the former finds stray accesses and the latter races within a block. Stricter than
// hardware: threads of a warp are in step only where they synchronise. Not seen: races between blocks.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
#else
#define CUDA_EMU_FAST_SWITCH  // by longjmp, which makes no system call; sanitizers want to see swapcontext
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static  // one block at a time on one OS thread

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
#define threadIdx (::cuda_emu::thread_idx())
#define blockIdx (::cuda_emu::quietly(::cuda_emu::g_block_idx))
#define blockDim (::cuda_emu::quietly(::cuda_emu::g_block_dim))
#define gridDim (::cuda_emu::quietly(::cuda_emu::g_grid_dim))

namespace cuda_emu {

inline dim3 g_block_idx, g_block_dim, g_grid_dim;

struct Quiet {  // the emulator's own memory accesses are no part of the kernel under test
#if defined(__SANITIZE_THREAD__)
  Quiet() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~Quiet() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
  Quiet() {}
  ~Quiet() {}
#endif
};
inline dim3 quietly(const dim3& value) {
  Quiet q;
  return value;
}

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_emu: %s in block (%u, %u, %u)\n", what, g_block_idx.x, g_block_idx.y, g_block_idx.z);
  std::abort();
}

struct Barrier {
  int arrived = 0, any = 0, all = 1, count = 0;        // of the epoch that is filling
  int out_any = 0, out_all = 0, out_count = 0;         // of the epoch that was released last
  uint64_t generation = 0;
  char clock[2] = {};  // TSan clocks, alternating so that a fast thread's next epoch is not inherited
};

struct Fiber {
  ucontext_t context{};
  jmp_buf jump{};
  char* stack = nullptr;
  dim3 index;
  int linear = 0;
  bool done = false, started = false;
  void* tsan = nullptr;
  void* fake_stack = nullptr;
};

struct Warp {
  uint64_t slot[32] = {};
  unsigned alive = 0;
  struct Group {
    unsigned mask;
    Barrier barrier;
  };
  std::vector<std::unique_ptr<Group>> groups;

  Barrier& group(unsigned mask) {
    for (auto& group : groups)
      if (group->mask == mask) return group->barrier;
    groups.push_back(std::make_unique<Group>(Group{mask, {}}));
    return groups.back()->barrier;
  }
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::unique_ptr<unsigned char[]> dynamic;
  Barrier barrier;
  ucontext_t main_context{};
  jmp_buf main_jump{};
  void* main_tsan = nullptr;
  void* main_fake = nullptr;
  const void* main_bottom = nullptr;
  size_t main_size = 0;
  Fiber* current = nullptr;
  int alive = 0;
  uint64_t progress = 0;
  char end_clock = 0;
  std::function<void()> body;
};
inline Block* g_block = nullptr;

constexpr size_t kStackBytes = 128 << 10;
inline char* stack_of(size_t fiber) {  // kept between launches
  static std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= fiber) stacks.emplace_back(new char[kStackBytes]);
  return stacks[fiber].get();
}

#if defined(__SANITIZE_THREAD__)
inline void* tsan_fiber_of(size_t fiber) {  // kept between blocks, which follow each other
  static std::vector<void*> fibers;
  while (fibers.size() <= fiber) fibers.push_back(__tsan_create_fiber(0));
  return fibers[fiber];
}
#endif

struct Schedule {
  bool shuffled = false;
  std::mt19937 random;
  Schedule() {
    if (const char* seed = std::getenv("CUEMU_SEED")) set(std::atoi(seed));
  }
  void set(int seed) { shuffled = seed != 0, random.seed(static_cast<unsigned>(seed)); }
};
inline Schedule& schedule() {
  static Schedule schedule;
  return schedule;
}
inline void set_seed(int seed) { schedule().set(seed); }  // 0: threads run in ascending order

inline dim3 thread_idx() {
  Quiet q;
  return g_block->current->index;
}
inline Block& block() {
  Quiet q;
  return *g_block;
}
inline Fiber& fiber() {
  Quiet q;
  return *g_block->current;
}

inline void switch_to(Fiber& fiber) {
  Block& block = *g_block;
  block.current = &fiber;
#if defined(CUDA_EMU_FAST_SWITCH)
  if (_setjmp(block.main_jump) != 0) return;
  if (fiber.started) _longjmp(fiber.jump, 1);
  fiber.started = true;
  setcontext(&fiber.context);
#else
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&block.main_fake, fiber.stack, kStackBytes);
#else
  __tsan_switch_to_fiber(fiber.tsan, fiber.started ? __tsan_switch_to_fiber_no_sync : 0);
#endif
  fiber.started = true;
  swapcontext(&block.main_context, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(block.main_fake, nullptr, nullptr);
#endif
#endif
}

inline void yield([[maybe_unused]] bool dying = false) {
  Block& b = block();
  Fiber& f = fiber();
#if defined(CUDA_EMU_FAST_SWITCH)
  if (_setjmp(f.jump) == 0) _longjmp(b.main_jump, 1);
#else
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(dying ? nullptr : &f.fake_stack, b.main_bottom, b.main_size);
#else
  __tsan_switch_to_fiber([&] { Quiet q; return b.main_tsan; }(), __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&f.context, &b.main_context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(f.fake_stack, &b.main_bottom, &b.main_size);
#endif
#endif
}

inline void release(Barrier& barrier) {
  barrier.out_any = barrier.any, barrier.out_all = barrier.all, barrier.out_count = barrier.count;
  barrier.any = 0, barrier.all = 1, barrier.count = 0, barrier.arrived = 0;
  ++barrier.generation, ++g_block->progress;
}

inline void wait(Barrier& barrier, int expected, bool predicate = false) {
  Quiet q;
#if defined(__SANITIZE_THREAD__)
  char* const clock = &barrier.clock[barrier.generation & 1];
  __tsan_release(clock);
#endif
  barrier.any |= predicate, barrier.all &= predicate, barrier.count += predicate;
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == expected) {
    release(barrier);
  } else {
    while (barrier.generation == generation) yield();
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(clock);
#endif
}

inline Barrier& block_wait(bool predicate = false) {
  Block& b = block();
  const int expected = [&] { Quiet q; return b.alive; }();
  wait(b.barrier, expected, predicate);
  return b.barrier;
}

inline int lane() {
  Quiet q;
  return g_block->current->linear % 32;
}
inline Warp& warp() {
  Quiet q;
  return g_block->warps[g_block->current->linear / 32];
}
inline void warp_wait(unsigned mask) {
  Quiet q;
  mask &= warp().alive;
  if ((mask >> lane() & 1u) == 0) fail("a lane is not in its own mask");
  wait(warp().group(mask), __builtin_popcount(mask));
}

inline void entry() {
  Block& b = block();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &b.main_bottom, &b.main_size);
#endif
  b.body();
  {
    Quiet q;
#if defined(__SANITIZE_THREAD__)
    __tsan_release(&b.end_clock);
#endif
    Fiber& f = *b.current;
    f.done = true;
    b.warps[f.linear / 32].alive &= ~(1u << f.linear % 32);
    ++b.progress, --b.alive;
    if (b.barrier.arrived != 0 && b.barrier.arrived == b.alive) release(b.barrier);
  }
  yield(true);
}

inline void run_block(Block& b, dim3 size, size_t shared_bytes, std::vector<int>& order) {
  const int threads = static_cast<int>(b.fibers.size());
  b.dynamic.reset(new unsigned char[shared_bytes]);  // exactly as many, so that ASan sees the first byte beyond
  std::memset(b.dynamic.get(), 0xFF, shared_bytes);  // NaN, where not written before it is read
  b.warps.clear(), b.warps.resize((threads + 31) / 32);
  b.barrier = {}, b.alive = threads;
  for (int i = 0; i < threads; ++i) {
    Fiber& f = b.fibers[i];
    order[i] = i, f.linear = i, f.done = f.started = false;
    f.index = dim3(i % size.x, i / size.x % size.y, i / (size.x * size.y));
    b.warps[i / 32].alive |= 1u << i % 32;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = kStackBytes, f.context.uc_link = nullptr;
    makecontext(&f.context, entry, 0);
  }
  while (b.alive != 0) {
    if (schedule().shuffled) std::shuffle(order.begin(), order.end(), schedule().random);
    const uint64_t before = b.progress;
    for (int i : order)
      if (!b.fibers[i].done) switch_to(b.fibers[i]);
    if (b.progress == before) fail("deadlock (a barrier that not all threads reach)");
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&b.end_clock);
#endif
}

template <class Kernel, class... Arguments>
void run(Kernel kernel, dim3 grid, dim3 size, size_t shared_bytes, Arguments... arguments) {
  Quiet q;
  const size_t threads = static_cast<size_t>(size.x) * size.y * size.z;
  if (threads == 0 || threads > 1024) fail("a block must have 1 to 1024 threads");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) fail("an empty grid");
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) fail("a grid beyond the limits");
  if (shared_bytes > 48 << 10) fail("more than 48 KiB of dynamic shared memory");
  g_block_dim = size, g_grid_dim = grid;
  Block b;
  g_block = &b;
  b.fibers.resize(threads);
  for (size_t i = 0; i < threads; ++i) b.fibers[i].stack = stack_of(i);
  b.body = [&] { kernel(arguments...); };  // fibers start without Quiet
#if defined(__SANITIZE_THREAD__)
  b.main_tsan = __tsan_get_current_fiber();
  for (size_t i = 0; i < threads; ++i) b.fibers[i].tsan = tsan_fiber_of(i);
#endif
  std::vector<int> order(threads);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        g_block_idx = dim3(x, y, z);
        run_block(b, size, shared_bytes, order);
      }
  g_block = nullptr;
}

template <class T>
T* dynamic_shared() {
  Quiet q;
  return reinterpret_cast<T*>(g_block->dynamic.get());
}
template <class Kernel>
struct Launch {
  Kernel kernel;
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;  // unused: launches are done when they return
  template <class... Arguments>
  void operator()(Arguments... arguments) const {
    run(kernel, grid, block, shared_bytes, arguments...);
  }
};

}  // namespace cuda_emu

#include "cuda_emu_intrinsics.h"
