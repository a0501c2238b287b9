// Half and BFloat16 as bare bits: what launchers take, layout-compatible with torch's types. And what is computed in.
#pragma once

#include <cstdint>

namespace disk_ops {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// What a kernel computes in: float, or double for double.
template <typename T>
struct Computing {
  using type = float;
};
template <>
struct Computing<double> {
  using type = double;
};
template <typename T>
using computing = typename Computing<T>::type;

}  // namespace disk_ops
