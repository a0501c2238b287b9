// The values that the convolution of a block reads, kLanes channels at a time. Included by instruction_sets.h once per
// instruction set: hence no include guard.

struct Input : Elements {
  // Where a pixel of the up-sampled image lies between two of the coarse one: 3/4 of the nearer, 1/4 of the other.
  struct Between {
    int64_t near, far;
    static Between of(int64_t position, int64_t size) {
      const int64_t near = position >> 1, far = position & 1 ? near + 1 : near - 1;
      return {clamp(near, size), clamp(far, size)};
    }
    static int64_t clamp(int64_t position, int64_t size) {
      return position < 0 ? 0 : position < size ? position : size - 1;
    }
  };

  static inline Vector blend(Vector near, Vector far) { return near * 0.75f + far * 0.25f; }

  // Channels c .. c + kLanes of kRows pixels one below the other, the first at (row, column) with an even row. `column`
  // lies inside the image; rows outside of it give anything.
  template <Resample resample, int kRows, typename T>
  static inline __attribute__((always_inline)) void load_column(const BlockInput<T>& in, int64_t row, int64_t column,
                                                                int64_t c, Vector (&value)[kRows]) {
    const int64_t step = in.x_row;
    if constexpr (resample == Resample::kUp) {
      const Between across = Between::of(column, in.x_width);
      const T* const near = in.x + across.near * in.x_channels + c;
      const T* const far = in.x + across.far * in.x_channels + c;
      Vector coarse[kRows / 2 + 2];
#pragma GCC unroll 16
      for (int i = 0; i < kRows / 2 + 2; ++i) {
        const int64_t line = Between::clamp((row >> 1) - 1 + i, in.x_height) * step;
        coarse[i] = blend(load(near + line), load(far + line));
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) value[r] = blend(coarse[1 + r / 2], coarse[r % 2 ? 2 + r / 2 : r / 2]);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int64_t line = Between::clamp(row + r, in.height);
        if constexpr (resample == Resample::kPool) {
          const T* const from = in.x + 2 * line * step + 2 * column * in.x_channels + c;
          value[r] = ((load(from) + load(from + in.x_channels)) +
                      (load(from + step) + load(from + step + in.x_channels))) * 0.25f;
        } else {
          value[r] = load(in.x + line * step + column * in.x_channels + c);
        }
      }
    }
  }

  template <int kRows, typename T>
  static inline __attribute__((always_inline)) void load_skip_column(const BlockInput<T>& in, int64_t row,
                                                                     int64_t column, int64_t c,
                                                                     Vector (&value)[kRows]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      value[r] = load(in.skip + Between::clamp(row + r, in.height) * in.skip_row + column * in.skip_channels + c);
  }

  template <int kRows, typename T>
  static inline __attribute__((always_inline)) void normalize(const BlockInput<T>& in, int64_t channel,
                                                              Vector (&value)[kRows]) {
    if (in.mean == nullptr) return;
    const Vector mean = load(in.mean + channel), factor = load(in.factor + channel);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) value[r] = (value[r] - mean) * factor;
  }

  template <int kRows, typename T>
  static inline __attribute__((always_inline)) void gate(const BlockInput<T>& in, int64_t channel,
                                                         Vector (&value)[kRows]) {
    if (in.slope == nullptr) return;
    const Vector slope = load(in.slope + channel);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) value[r] = value[r] > Vector{} ? value[r] : value[r] * slope;
  }

  // What the convolution reads at kRows pixels one below the other; 0 outside the image. `row` is even.
  template <Resample resample, int kRows, typename T>
  static inline __attribute__((always_inline)) void activation_column(const BlockInput<T>& in, int64_t row,
                                                                      int64_t column, int64_t channel,
                                                                      Vector (&value)[kRows]) {
    if (column < 0 || column >= in.width) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) value[r] = Vector{};
      return;
    }
    if (channel < in.x_channels)
      load_column<resample>(in, row, column, channel, value);
    else
      load_skip_column(in, row, column, channel - in.x_channels, value);
    normalize(in, channel, value);
    gate(in, channel, value);
    if (row < 0 || row + kRows > in.height)
      for (int r = 0; r < kRows; ++r)
        if (row + r < 0 || row + r >= in.height) value[r] = Vector{};
  }
};

// Adds the sums over one or two rows of an up-sampled channel, each value less `offset`, and of their squares. Along a
// row neighbours a, b of the coarse image become 3/4 a + 1/4 b and 1/4 a + 3/4 b, whose squares are 5/8 (a² + b²) +
// 3/4 ab together, and both ends are copied once more: so each coarse pixel is looked at once, not twice.
template <typename T>
void sum_up_rows(const BlockInput<T>& input, int64_t row, bool both, int64_t channel, Input::Vector offset,
                 Input::Vector& sum, Input::Vector& squares) {
  const BlockInput<T> in = input;
  using Vector = Input::Vector;
  const auto line = [&](int64_t position) {
    return in.x + Input::Between::clamp(position, in.x_height) * in.x_row + channel;
  };
  const T* const above = line((row >> 1) - 1);
  const T* const middle = line(row >> 1);
  const T* const below = line((row >> 1) + 1);
  Vector pixels{}, pixel_squares{}, end_squares{}, products{}, last[2] = {};
  for (int64_t column = 0; column < in.x_width; ++column) {
    const int64_t place = column * in.x_channels;
    const Vector near = Input::load(middle + place) - offset;
    const Vector first = Input::blend(near, Input::load(above + place) - offset);
    const Vector second = both ? Input::blend(near, Input::load(below + place) - offset) : Vector{};
    const Vector both_squares = first * first + second * second;
    pixels += first + second;
    pixel_squares += both_squares;
    products += first * last[0] + second * last[1];
    if (column == 0) end_squares += both_squares;
    if (column == in.x_width - 1) end_squares += both_squares;
    last[0] = first;
    last[1] = second;
  }
  sum += pixels * 2.0f;
  squares += pixel_squares * 1.25f + end_squares * 0.375f + products * 0.75f;
}

// Sums over rows [first, first + count) of an input, each value less the channel's pivot, and of their squares.
template <Resample resample, typename T>
void sum_rows(const BlockInput<T>& input, int64_t first, int64_t count, const float* pivot,  // [channels]
              double* sum, double* squares) {                                              // [channels], added to
  using Vector = Input::Vector;
  constexpr int kLanes = Input::kLanes;
  const BlockInput<T> in = input;
  for (int64_t channel = 0; channel < in.x_channels + in.skip_channels; channel += kLanes) {
    const Vector offset = Input::load(pivot + channel);
    for (int64_t row = first; row < first + count; row += 2) {  // `first` is even
      const bool both = row + 1 < first + count;
      Vector total{}, total_squares{};
      const bool up = resample == Resample::kUp && channel < in.x_channels;
      if (up) sum_up_rows(input, row, both, channel, offset, total, total_squares);
      for (int64_t column = 0; column < (up ? 0 : in.width); ++column) {
        Vector value[2];
        if (channel < in.x_channels)
          Input::load_column<resample>(in, row, column, channel, value);
        else
          Input::load_skip_column(in, row, column, channel - in.x_channels, value);
        value[0] -= offset;
        value[1] = both ? value[1] - offset : Vector{};
        total += value[0] + value[1];
        total_squares += value[0] * value[0] + value[1] * value[1];
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        sum[channel + lane] += static_cast<double>(total[lane]);
        squares[channel + lane] += static_cast<double>(total_squares[lane]);
      }
    }
  }
}
