#include "buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

namespace disk_ops {
namespace {

constexpr size_t kSmallest = size_t(1) << 20;  // smaller tensors are left to the C library, which keeps those itself

// Unused buffers by size. It is never destroyed: tensors may outlive static objects.
class Pool {
 public:
  void* take(size_t bytes, size_t& capacity) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = free_.lower_bound(bytes);
      if (found != free_.end() && found->first <= bytes + bytes / 4) {  // a much larger one would be wasted
        void* const memory = found->second;
        capacity = found->first;
        kept_ -= capacity;
        free_.erase(found);
        return memory;
      }
    }
    capacity = bytes;
    try {
      return c10::alloc_cpu(bytes);
    } catch (const c10::Error&) {  // perhaps because of what is kept
      release();
      return c10::alloc_cpu(bytes);
    }
  }

  void give_back(void* memory, size_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (capacity > most()) {
      c10::free_cpu(memory);
      return;
    }
    free_.emplace(capacity, memory);
    kept_ += capacity;
    shrink(most());
  }

  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    shrink(0);
  }

  void set_limit(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit_ = bytes;
    shrink(most());
  }

  void add_bound(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bounds_.insert(bytes);
    shrink(most());
  }

  void remove_bound(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = bounds_.find(bytes);
    if (found != bounds_.end()) bounds_.erase(found);
  }

  size_t kept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }

  size_t limit() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return limit_;
  }

 private:
  size_t most() const { return bounds_.empty() ? limit_ : std::min(limit_, *bounds_.begin()); }

  void shrink(size_t bytes) {  // the smallest first: they are the cheapest to have anew
    while (kept_ > bytes) {
      const auto first = free_.begin();
      c10::free_cpu(first->second);
      kept_ -= first->first;
      free_.erase(first);
    }
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;  // by capacity
  size_t kept_ = 0, limit_ = size_t(1) << 29;
  std::multiset<size_t> bounds_;  // of work that is under way
};

Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

}  // namespace

at::Tensor empty_channels_last(at::IntArrayRef size, at::ScalarType type) {
  const int64_t channels = size[1], height = size[2], width = size[3];
  const auto options = at::TensorOptions().dtype(type);
  const size_t bytes = static_cast<size_t>(size[0] * channels * height * width) * c10::elementSize(type);
  if (bytes < kSmallest) return at::empty(size, options.memory_format(at::MemoryFormat::ChannelsLast));
  size_t capacity = 0;
  void* const memory = pool().take(bytes, capacity);
  return at::from_blob(
      memory, size, {channels * height * width, 1, width * channels, channels},
      [capacity](void* given) { pool().give_back(given, capacity); }, options);
}

int64_t kept_bytes() { return static_cast<int64_t>(pool().kept()); }
int64_t kept_limit() { return static_cast<int64_t>(pool().limit()); }
void set_kept_limit(int64_t bytes) { pool().set_limit(static_cast<size_t>(bytes)); }
void add_kept_bound(int64_t bytes) { pool().add_bound(static_cast<size_t>(bytes)); }
void remove_kept_bound(int64_t bytes) { pool().remove_bound(static_cast<size_t>(bytes)); }
void release_kept() { pool().release(); }

}  // namespace disk_ops
