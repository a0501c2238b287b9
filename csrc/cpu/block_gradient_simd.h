// The gradient of what the convolution of a block reads, carried back through gate, norm, concatenation and resampling.
// Included by instruction_sets.h once per instruction set: hence no include guard.

struct Gradient : Input {
  // What the gate reads at two pixels one below the other, and the gradient there. `row` is even, `column` inside.
  template <Resample resample>
  static inline __attribute__((always_inline)) void gate_column(const BlockInput<float>& in, const BlockGradient& gradient,
                                                                int64_t row, int64_t column, int64_t channel,
                                                                Vector (&value)[2], Vector (&grad)[2]) {
    if (channel < in.x_channels)
      load_column<resample>(in, row, column, channel, value);
    else
      load_skip_column(in, row, column, channel - in.x_channels, value);
    normalize(in, channel, value);
    const int64_t channels = in.x_channels + in.skip_channels;
    const float* const from = gradient.output + (row * in.width + column) * channels + channel;
    grad[0] = load(from);
    grad[1] = row + 1 < in.height ? load(from + in.width * channels) : Vector{};
  }

  static inline __attribute__((always_inline)) void through_gate(const BlockInput<float>& in, int64_t channel,
                                                                 const Vector (&value)[2], Vector (&grad)[2]) {
    if (in.slope == nullptr) return;
    const Vector slope = load(in.slope + channel);
    for (int r = 0; r < 2; ++r) grad[r] = value[r] > Vector{} ? grad[r] : grad[r] * slope;
  }

  // The gradient of the resampled and joined tensor at two pixels; 0 below the last row.
  template <Resample resample>
  static inline __attribute__((always_inline)) void joined_column(const BlockInput<float>& in, const BlockGradient& gradient,
                                                                  int64_t row, int64_t column, int64_t channel,
                                                                  Vector (&grad)[2]) {
    Vector value[2];
    gate_column<resample>(in, gradient, row, column, channel, value, grad);
    through_gate(in, channel, value, grad);
    if (in.mean != nullptr) {
      const Vector mean = load(gradient.mean + channel), along = load(gradient.along + channel);
      const Vector factor = load(in.factor + channel);
      for (int r = 0; r < 2; ++r) grad[r] = (grad[r] - mean - value[r] * along) * factor;
    }
    if (row + 1 >= in.height) grad[1] = Vector{};
  }
};

// Sums over rows [first, first + count), added to [3, channels]: the gradient before the gate, that times the
// normalised value, and the gradient of the gate's slope. `first` is even.
template <Resample resample>
void sum_gradient(const BlockInput<float>& input, const BlockGradient& of_output, int64_t first, int64_t count, double* sums) {
  const BlockInput<float> in = input;
  const BlockGradient gradient = of_output;
  using Vector = Input::Vector;
  const int64_t channels = in.x_channels + in.skip_channels;
  for (int64_t row = first; row < first + count; row += 2)
    for (int64_t channel = 0; channel < channels; channel += Input::kLanes) {
      Vector total{}, along{}, slope{};
      for (int64_t column = 0; column < in.width; ++column) {
        Vector value[2], grad[2];
        Gradient::gate_column<resample>(in, gradient, row, column, channel, value, grad);
        for (int r = 0; r < 2; ++r) slope += value[r] > Vector{} ? Vector{} : value[r] * grad[r];
        Gradient::through_gate(in, channel, value, grad);
        for (int r = 0; r < 2; ++r) {
          total += grad[r];
          along += value[r] * grad[r];
        }
      }
      for (int lane = 0; lane < Input::kLanes; ++lane) {
        sums[channel + lane] += static_cast<double>(total[lane]);
        sums[channels + channel + lane] += static_cast<double>(along[lane]);
        sums[2 * channels + channel + lane] += static_cast<double>(slope[lane]);
      }
    }
}

inline void add(float* to, Input::Vector value) { Input::store(to, Input::load(to) + value); }

// The gradient of rows [first, first + count) of the coarse image, which are 0 before: each of its pixels has a part in
// four columns and four rows of the up-sampled one.
inline void gradient_of_up(const BlockInput<float>& input, const BlockGradient& of_output, int64_t first, int64_t count,
                           int64_t channel, float* grad_x) {
  const BlockInput<float> in = input;
  const BlockGradient gradient = of_output;
  using Vector = Input::Vector;
  const int64_t step = in.x_width * in.x_channels;
  for (int64_t pair = std::max<int64_t>(0, first - 1); pair < std::min(first + count + 1, in.x_height); ++pair) {
    const int64_t above = Input::Between::clamp(pair - 1, in.x_height), below = Input::Between::clamp(pair + 1, in.x_height);
    const auto inside = [&](int64_t row) { return row >= first && row < first + count; };
    const bool to_above = inside(above), to_pair = inside(pair), to_below = inside(below);
    const auto emit = [&](int64_t column, Vector upper, Vector lower) {
      float* const to = grad_x + column * in.x_channels + channel;
      if (to_pair) add(to + pair * step, (upper + lower) * 0.75f);
      if (to_above) add(to + above * step, upper * 0.25f);
      if (to_below) add(to + below * step, lower * 0.25f);
    };
    Vector pending[2] = {}, last[2] = {};  // of the pixel before: its sum so far, and the gradient at its right half
    for (int64_t column = 0; column < in.x_width; ++column) {
      Vector left[2], right[2];
      Gradient::joined_column<Resample::kUp>(in, gradient, 2 * pair, 2 * column, channel, left);
      Gradient::joined_column<Resample::kUp>(in, gradient, 2 * pair, 2 * column + 1, channel, right);
      if (column > 0) emit(column - 1, pending[0] + left[0] * 0.25f, pending[1] + left[1] * 0.25f);
      for (int r = 0; r < 2; ++r) {
        pending[r] = (left[r] + right[r]) * 0.75f + (column > 0 ? last[r] : left[r]) * 0.25f;
        last[r] = right[r];
      }
    }
    emit(in.x_width - 1, pending[0] + last[0] * 0.25f, pending[1] + last[1] * 0.25f);
  }
}

// The gradients of a part of an image: `count` pairs of rows after pooling or up-sampling, from pair `first`.
template <Resample resample>
void gradient_of_input(const BlockInput<float>& input, const BlockGradient& of_output, int64_t first, int64_t count,
                       float* grad_x,       // [x_height, x_width, x_channels], 0 before
                       float* grad_skip) {  // [height, width, skip_channels]
  const BlockInput<float> in = input;
  const BlockGradient gradient = of_output;
  using Vector = Input::Vector;
  for (int64_t channel = 0; channel < in.x_channels + in.skip_channels; channel += Input::kLanes) {
    const bool of_skip = channel >= in.x_channels;
    if (resample == Resample::kUp && !of_skip) {
      gradient_of_up(input, of_output, first, count, channel, grad_x);
      continue;
    }
    const int64_t pixel = of_skip ? in.skip_channels : in.x_channels;
    float* const to = of_skip ? grad_skip + channel - in.x_channels : grad_x + channel;
    for (int64_t row = 2 * first; row < std::min(2 * (first + count), in.height); row += 2)
      for (int64_t column = 0; column < in.width; ++column) {
        Vector grad[2];
        Gradient::joined_column<resample>(in, gradient, row, column, channel, grad);
        for (int64_t r = 0; r < std::min<int64_t>(2, in.height - row); ++r) {
          if (resample == Resample::kPool && !of_skip) {
            const Vector quarter = grad[r] * 0.25f;
            for (int64_t i = 0; i < 4; ++i)
              Input::store(to + ((2 * (row + r) + i / 2) * in.x_width + 2 * column + i % 2) * pixel, quarter);
          } else {
            Input::store(to + ((row + r) * in.width + column) * pixel, grad[r]);
          }
        }
      }
  }
}
