// The element type of a tensor as a type.
#pragma once

#include <c10/core/ScalarType.h>

#include "number.h"

namespace disk_ops {

// Calls use(T{}) with T the type as kernels see it.
template <typename Use>
auto with_element_type(at::ScalarType type, const Use& use) {
  switch (type) {
    case at::kHalf: return use(Half{});
    case at::kBFloat16: return use(BFloat16{});
    case at::kDouble: return use(double{});
    default: return use(float{});
  }
}

}  // namespace disk_ops
