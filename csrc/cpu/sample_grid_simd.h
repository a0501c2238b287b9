// The loops of sample_grid that need fused multiply-adds. Included by instruction_sets.h once per instruction set: hence
// no include guard. Without such instructions each is a call: exact, but slow.

template <typename real>
void weigh(real* weight, const real* value, const real* highest, int64_t size) {
  for (int64_t i = 0; i < size; ++i) weight[i] = exp_nonpositive(value[i] - highest[i]);
}

template <typename real>
constexpr Weigh<real> kernel() {
  return &weigh<real>;
}
