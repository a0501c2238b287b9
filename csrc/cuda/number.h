// Half and BFloat16 as bare bits: what launchers take, layout-compatible with torch's types.
#pragma once

#include <cstdint>

namespace disk_ops {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

}  // namespace disk_ops
