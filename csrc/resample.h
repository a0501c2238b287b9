// How a block of the U-Net changes the size of its input: no torch, for kernels of every device.
#pragma once

namespace disk_ops {

enum class Resample { kNone, kPool, kUp };  // pool: mean of 2 x 2 pixels; up: twice the size, bilinear

}  // namespace disk_ops
