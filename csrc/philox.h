// Philox-4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
// the numbers of a counter depend on nothing else, so that any number of threads on any device draw the same.
#pragma once

#include "scalar.h"

namespace disk_ops {

struct RandomBits {
  uint32_t word[4];
};

DISK_HD uint32_t high_product(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}

DISK_HD RandomBits philox(uint64_t key, uint32_t counter0, uint32_t counter1, uint32_t counter2, uint32_t counter3) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = high_product(0xD2511F53u, counter0), low0 = 0xD2511F53u * counter0;
    const uint32_t high1 = high_product(0xCD9E8D57u, counter2), low1 = 0xCD9E8D57u * counter2;
    counter0 = high1 ^ counter1 ^ key0, counter1 = low1;
    counter2 = high0 ^ counter3 ^ key1, counter3 = low0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return {{counter0, counter1, counter2, counter3}};
}

// A number in [0, 1), a multiple of 2^-24 or 2^-53. The leading bits are those of `high` in both.
DISK_HD void uniform_of(uint32_t high, uint32_t, float& number) { number = static_cast<float>(high >> 8) * 0x1p-24f; }
DISK_HD void uniform_of(uint32_t high, uint32_t low, double& number) {
  number = static_cast<double>((static_cast<uint64_t>(high) << 32 | low) >> 11) * 0x1p-53;
}

}  // namespace disk_ops
