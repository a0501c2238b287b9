// How much memory buffers.h keeps, for those who don't know tensors.
#pragma once

#include <cstdint>

namespace disk_ops {

int64_t kept_bytes();               // of buffers that wait for their next use
int64_t kept_limit();               // the most that may wait
void set_kept_limit(int64_t bytes);  // releases what is above
void add_kept_bound(int64_t bytes);  // holds beside the limit until it is removed; releases what is above
void remove_kept_bound(int64_t bytes);
void release_kept();                // gives all that wait back to the system

}  // namespace disk_ops
