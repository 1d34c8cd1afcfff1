// Direct convolutions of generated CPU code: dense (any kernel, 1x1 included) and depthwise. See mononn_cpu.hpp.
//
// Activations, floats or narrower, lie with channels innermost: pixels LDA elements apart, image rows PITCH pixels apart,
// the zero border stored with them. Weights lie in panels of [KH][KW][C][PANEL].
#pragma once
#include "mononn_cpu.hpp"

namespace mn {

// Geometry of a convolution's windows: C channels read, LDA floats between pixels, PITCH pixels between image rows of
// the bordered input, OW output pixels a row, kernel, strides, dilations.
template <int C_, long LDA_, long PITCH_, int OW_, int KH_, int KW_, int SH_, int SW_, int DH_, int DW_> struct Windows {
  static constexpr int C = C_, OW = OW_, KH = KH_, KW = KW_, SH = SH_, SW = SW_, DH = DH_, DW = DW_;
  static constexpr long LDA = LDA_, PITCH = PITCH_;
  // Runs of consecutive floats in a kernel row: one where neighbouring taps lie side by side, else one a tap.
  static constexpr bool DENSE = LDA == C && DW == 1;
  static constexpr int RUNS = DENSE ? 1 : KW, RUN = DENSE ? KW * C : C;
  static constexpr long at(long row, long column) { return (row * PITCH + column) * LDA; }
};

// ROWS x WIDTH output pixels cut evenly into tiles of at most MOST: a row in pieces, or several short rows together.
template <int ROWS, int WIDTH, int MOST, int HEIGHT> struct Cut {
  static constexpr int PIECES = (WIDTH + MOST - 1) / MOST, NARROW = WIDTH / PIECES, WIDES = WIDTH % PIECES;
  static constexpr int BANDS = (ROWS + HEIGHT - 1) / HEIGHT, LOW = ROWS / BANDS, TALLS = ROWS % BANDS;
  static constexpr int TILES = PIECES * BANDS;
  // Calls f.operator()<RH, RW>(y, x) for each tile.
  template <int RH, class F> MN_INLINE void band(long y, F &&f) {
    long x = 0;
    if constexpr (WIDES > 0)
      MN_NOUNROLL for (; x < WIDES * (NARROW + 1); x += NARROW + 1) f.template operator()<RH, NARROW + 1>(y, x);
    MN_NOUNROLL for (; x < WIDTH; x += NARROW) f.template operator()<RH, NARROW>(y, x);
  }
  template <class F> MN_INLINE void each(F &&f) {
    long y = 0;
    if constexpr (TALLS > 0)
      MN_NOUNROLL for (; y < TALLS * (LOW + 1); y += LOW + 1) band<LOW + 1>(y, f);
    MN_NOUNROLL for (; y < ROWS; y += LOW) band<LOW>(y, f);
  }
};

// Taps of a window that are multiplied: rows [top, bottom), of each the runs [left, right).
struct Taps {
  int top, bottom, left, right;
};
// Rows [TOP, BOTTOM) and columns [LEFT, RIGHT) of the bordered image hold all that is not zero; ``row`` is the first that
// is read. A tile leaves out the taps that read nothing else: it gives the same sums.
template <int TOP, int BOTTOM, int LEFT, int RIGHT> struct Inside {
  long row;
  // Those of RH x RW windows, the first of them ``at`` elements behind the first that is read.
  template <class G, int RH, int RW> __attribute__((always_inline)) Taps taps(long at) const {
    const long y = row + at / G::at(1, 0), x = at % G::at(1, 0) / G::LDA;
    Taps t{0, G::KH, 0, G::RUNS};
    while (t.top < G::KH && y + (RH - 1) * G::SH + t.top * G::DH < TOP) ++t.top;
    while (t.bottom > t.top && y + (t.bottom - 1) * G::DH >= BOTTOM) --t.bottom;
    if constexpr (!G::DENSE) {
      while (t.left < G::RUNS && x + (RW - 1) * G::SW + t.left * G::DW < LEFT) ++t.left;
      while (t.right > t.left && x + (t.right - 1) * G::DW >= RIGHT) --t.right;
    }
    return t;
  }
};
// Of an image that may be full of anything.
struct Full {
  template <class G, int RH, int RW> __attribute__((always_inline)) Taps taps(long) const { return {0, G::KH, 0, G::RUNS}; }
};

// Whether a step of a tile leaves room to ask for a line: with shorter vectors a core issues all that it can.
constexpr bool ROOM = W * sizeof(float) >= 64;

// COUNT cache lines that the epilogue of a tile will touch; ``ask(i)`` asks for the i-th. They are asked for one after the
// other while the tile is multiplied: a core waits for few lines at once, and what it loads then waits behind the others.
template <int COUNT, class Ask> struct Lines {
  Ask ask;
  int next = 0;
  // Those of one of the STEPS steps in which the tile is multiplied.
  template <int STEPS> __attribute__((always_inline)) void step() {
    constexpr int EACH = (COUNT + STEPS - 1) / STEPS;
    if (next < COUNT)
      MN_UNROLL for (int i = 0; i < EACH; ++i) ask(next + i);
    next += EACH;
  }
};

// The pixels of the next tile, which lie behind those of this one: asked for with each of STEPS steps, or its first loads of
// all pixels' lines would wait together. Only of windows that are whole pixels, neighbours, few enough for the near cache.
template <class G, int PIXELS, int STEPS, class TA> struct NextPixels {
  static constexpr long BYTES = PIXELS * G::LDA * sizeof(TA);
  static constexpr bool KNOWN = ROOM && G::KH == 1 && G::KW == 1 && G::SW == 1 && G::LDA - G::C < 64 && BYTES <= 1 << 15;
  const char *next;
  __attribute__((always_inline)) void step() {
    constexpr int EACH = KNOWN ? (BYTES / 64 + STEPS - 1) / STEPS : 0;
    MN_UNROLL for (int i = 0; i < EACH; ++i) __builtin_prefetch(next + i * 64);
    next += EACH * 64;
  }
};

// Terms of a run that are multiplied side by side.
template <class G> constexpr int STEP = G::RUN % STEPS == 0 ? STEPS : G::RUN % 2 == 0 ? 2 : G::RUN % 3 == 0 ? 3 : 1;

// c += RH x RW output pixels times NV vectors, of each run's terms [from, to): the accumulators stay in registers over all
// taps, and the pixels of a step lie at constant distances from one pointer. Rows of B lie STRIDE floats apart; SKIP rows are
// left out after each tap.
template <class G, int RH, int RW, int NV, int STRIDE, int SKIP, class TA, class Fetching, class Touched>
MN_INLINE void add_windows(V (&c)[RH * RW][NV], const TA *__restrict A, const float *__restrict panel, Taps taps, int from, int to,
                           Fetching fetch, Touched lines) {
  static_assert(SKIP == 0 || !G::DENSE);
  // Longer sums than those of one run hide what waits: there all are asked for at once, which takes no steps.
  constexpr bool SPREAD = ROOM && G::KH * G::RUNS == 1;
  if constexpr (!SPREAD) lines.template step<1>();
  NextPixels<G, RH * RW, G::RUN / STEP<G>, TA> pixels{(const char *)(A + RH * RW * G::LDA)};
  MN_NOUNROLL for (int kh = taps.top; kh < taps.bottom; ++kh)
    MN_NOUNROLL for (int r = taps.left; r < taps.right; ++r) {
      const TA *a = A + G::at(kh * G::DH, r * G::DW) + from;
      const float *B = panel + (((long)kh * G::RUNS + r) * (G::RUN + SKIP) + from) * STRIDE;
      MN_NOUNROLL for (int k = from; k < to; k += STEP<G>) {
        if constexpr (SPREAD) lines.template step<G::RUN / STEP<G>>();
        pixels.step();
        a = held(a), B = held(B);
        MN_UNROLL for (int u = 0; u < STEP<G>; ++u) {
          V row[NV];
          MN_UNROLL for (int j = 0; j < NV; ++j) row[j] = load_now(B + u * STRIDE + j * W);
          fetch.template row<NV * W>(B + u * STRIDE, u);
          MN_UNROLL for (int i = 0; i < RH * RW; ++i) {
            const V v = splat_now(a[G::at(i / RW * G::SH, i % RW * G::SW) + u]);
            MN_UNROLL for (int j = 0; j < NV; ++j) add_now(c[i][j], v, row[j]);
          }
        }
        a += STEP<G>;
        B += STEP<G> * STRIDE;
        fetch = fetch.from(STEP<G>);
      }
    }
}

struct Nothing {
  void operator()(long, long, long) const {}
};

// Tiles of at most MOST of the ROWS x G::OW output pixels by NV vectors of channels: ``tile.operator()<RH, RW>(at, fetch,
// lines, epilogue)`` hands the sums of RH x RW pixels, whose windows begin ``at`` elements behind the first, to an epilogue
// that will touch ``lines``, and fetches what ``fetches.operator()<TILES>(number)`` says. Where windows are pixels that lie
// one after the other, all rows are one if that makes far fewer tiles: finding a pixel's row then takes a division.
template <class G, int ROWS, int NV, int MOST, bool CHEAP, class Tile, class Fetches, class Element, class Ahead>
MN_INLINE void each_tile(Tile &&tile, Fetches &&fetches, Element &&element, Ahead &&ahead) {
  using Rows = Cut<ROWS, G::OW, MOST, G::OW < MOST ? MOST / G::OW : 1>;
  using Flat = Cut<1, ROWS * G::OW, MOST, 1>;
  constexpr bool DENSE = G::KH == 1 && G::KW == 1 && G::SH == 1 && G::SW == 1 && G::PITCH == G::OW;
  constexpr bool FLAT = DENSE && 8 * Flat::TILES < 7 * Rows::TILES;
  using Tiles = std::conditional_t<FLAT, Flat, Rows>;
  int number = 0;
  Tiles::each([&]<int RH, int RW>(long y, long x) __attribute__((always_inline)) {
    auto row = [=](long i) __attribute__((always_inline)) { return FLAT ? (long)((unsigned)(x + i) / G::OW) : y + i / RW; };
    auto column = [=](long i) __attribute__((always_inline)) { return FLAT ? (long)((unsigned)(x + i) % G::OW) : x + i % RW; };
    constexpr int OF_PIXEL = (NV * W + 15) / 16;
    auto ask = [&](int i) __attribute__((always_inline)) { ahead(row(i / OF_PIXEL), column(i / OF_PIXEL), i % OF_PIXEL * 16); };
    const Lines<RH * RW * OF_PIXEL, decltype(ask)> lines{ask};
    const auto fetch = fetches.template operator()<Tiles::TILES>(number++);
    tile.template operator()<RH, RW>(G::at(y * G::SH, x * G::SW), fetch, lines, [&](auto &c) __attribute__((always_inline)) {
      finish<CHEAP, RH * RW, NV, is_paired<std::remove_cvref_t<Element>>>(c, 0, [&](long i, long n, auto v) __attribute__((always_inline)) {
        element(row(i), column(i), n, v);
      });
    });
  });
}

constexpr long FAR_PANEL = 1 << 18;  // bytes of one that does not stay in the second-level cache beside pixels and what is fetched

// The first NV vectors of channels of a panel whose rows lie STRIDE floats apart; see ``conv``. Over one that is far all tiles
// pass in PARTS, a kernel row each or some of the only row's terms; their sums wait in the near cache.
template <class G, int ROWS, int NV, int STRIDE, int MOST, bool CHEAP, int SKIP, class TA, class Element, class Ahead, class Where>
MN_INLINE void conv_vectors(const TA *A, const float *B, Element &&element, Ahead &&ahead, Where where) {
  constexpr long ROW = (long)G::RUNS * (G::RUN + SKIP), SUMS = (long)ROWS * G::OW * NV * W;
  constexpr int SOME = 1024 / STEP<G> * STEP<G>, CUTS = G::RUNS > 1 ? 1 : (G::RUN + SOME - 1) / SOME;
  constexpr bool APART = G::KH * ROW * STRIDE * 4 >= FAR_PANEL && SUMS <= WAITING;
  constexpr int PARTS = !APART ? 1 : G::KH > 1 ? G::KH : CUTS;
  alignas(64) float sums[PARTS > 1 ? SUMS : 1];
  auto pass = [&]<bool LAST>(int part, auto &&store_, auto &&ahead_) __attribute__((always_inline)) {
    const bool row = PARTS > 1 && G::KH > 1, some = PARTS > 1 && G::KH == 1;
    const int top = row ? part : 0, bottom = row ? part + 1 : G::KH;
    const int from = some ? part * SOME : 0, to = some && !LAST ? from + SOME : G::RUN;
    float *waiting = sums;
    auto tile = [&]<int RH, int RW>(long at, auto fetch, auto lines, auto &&epilogue) __attribute__((always_inline)) {
      V c[RH * RW][NV];
      MN_UNROLL for (int i = 0; i < RH * RW; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) c[i][j] = PARTS > 1 && part > 0 ? load<V>(waiting + (i * NV + j) * W) : V{};
      Taps taps = where.template taps<G, RH, RW>(at);
      if (taps.top < top) taps.top = top;
      if (taps.bottom > bottom) taps.bottom = bottom;
      add_windows<G, RH, RW, NV, STRIDE, SKIP>(c, A + at, B, taps, from, to, fetch, lines);
      if constexpr (LAST) {
        epilogue(c);
      } else {
        MN_UNROLL for (int i = 0; i < RH * RW; ++i)
          MN_UNROLL for (int j = 0; j < NV; ++j) store<V>(waiting + (i * NV + j) * W, c[i][j]);
      }
      waiting += RH * RW * NV * W;
    };
    auto fetches = [=]<int TILES>(int number) __attribute__((always_inline)) {
      const long rows = row ? ROW : some ? to - from : G::KH * ROW;
      return fetch_of<TILES, STRIDE>(number, B + (top * ROW + from) * STRIDE, rows);
    };
    each_tile<G, ROWS, NV, MOST, CHEAP>(tile, fetches, store_, ahead_);
  };
  if constexpr (PARTS > 1) {
    auto wait = [](long, long, long, V) {};
    MN_NOUNROLL for (int part = 0; part + 1 < PARTS; ++part) pass.template operator()<false>(part, wait, Nothing{});
  }
  pass.template operator()<true>(PARTS - 1, element, ahead);
}

// ROWS rows of G::OW output pixels by PANEL channels, at most MOST pixels at once; ``element(y, x, n, v)`` takes W
// neighbouring channels from n on. A is the first pixel of the first window (border included), B the panel. ``ahead(y, x, n)``
// may prefetch what ``element`` will touch in a cache line: it runs while a tile is multiplied. The panel has SKIP rows a
// tap more than there are channels to read, which lie LDB floats apart. ``where`` the image is not zero: Inside or Full.
template <class G, int ROWS, int PANEL, int MOST, bool CHEAP, int SKIP = 0, int LDB = PANEL, class TA, class Element, class Ahead = Nothing, class Where = Full>
MN_INLINE void conv(const TA *A, const float *B, Element &&element, Ahead &&ahead = Nothing{}, Where where = Full{}) {
  conv_vectors<G, ROWS, PANEL / W, LDB, MOST, CHEAP, SKIP>(A, B, element, ahead, where);
}

// As ``conv``, of a panel of which only so many ``channels`` are there: where half of its vectors hold them, those alone,
// of as many more pixels at once.
template <class G, int ROWS, int PANEL, int MOST, bool CHEAP, int SKIP = 0, int LDB = PANEL, class TA, class Element, class Ahead = Nothing, class Where = Full>
MN_INLINE void conv_ragged(const TA *A, const float *B, long channels, Element &&element, Ahead &&ahead = Nothing{}, Where where = Full{}) {
  constexpr int NV = PANEL / W;
  if constexpr (NV % 2 == 0)
    if (channels <= PANEL / 2) return conv_vectors<G, ROWS, NV / 2, LDB, 2 * MOST, CHEAP, SKIP>(A, B, element, ahead, where);
  conv_vectors<G, ROWS, NV, LDB, MOST, CHEAP, SKIP>(A, B, element, ahead, where);
}

// Channel C of every group of GROUP neighbouring lanes, in all lanes of the group.
template <int GROUP, int C, int... L> MN_INLINE V spread(V v, Sequence<int, L...>) {
  return __builtin_shufflevector(v, v, (L / GROUP * GROUP + C)...);
}

// add(y, x, kh, kw, read(row, column)) for each of RH x RW windows and each of KR rows of taps, in a window's order of
// taps: each input is read once for all the windows it lies in, unless windows are so far apart that they share few.
template <class G, int RH, int RW, int KR, class Read, class Add> MN_INLINE void each_tap(Read &&read, Add &&add) {
  constexpr int ROWS = (RH - 1) * G::SH + (KR - 1) * G::DH + 1, COLUMNS = (RW - 1) * G::SW + (G::KW - 1) * G::DW + 1;
  if constexpr (ROWS * COLUMNS > 2 * RH * KR * RW * G::KW) {
    MN_UNROLL for (int kh = 0; kh < KR; ++kh)
      MN_UNROLL for (int y = 0; y < RH; ++y)
        MN_UNROLL for (int kw = 0; kw < G::KW; ++kw)
          MN_UNROLL for (int x = 0; x < RW; ++x)
            add(y, x, kh, kw, read(y * G::SH + kh * G::DH, x * G::SW + kw * G::DW));
  } else {
    MN_UNROLL for (int row = 0; row < ROWS; ++row)
      MN_UNROLL for (int column = 0; column < COLUMNS; ++column) {
        const auto v = read(row, column);
        MN_UNROLL for (int kh = 0; kh < KR; ++kh)
          MN_UNROLL for (int kw = 0; kw < G::KW; ++kw) {
            const int y = row - kh * G::DH, x = column - kw * G::DW;
            if (y >= 0 && x >= 0 && y % G::SH == 0 && x % G::SW == 0 && y / G::SH < RH && x / G::SW < RW)
              add(y / G::SH, x / G::SW, kh, kw, v);
          }
      }
  }
}

// RH x RW output pixels by W channels in groups of GROUP, KR kernel rows at a time: their weights stay in registers
// where they fit.
template <class G, int RH, int RW, int KR, int GROUP, class TA, class Epilogue>
MN_INLINE void depthwise_tile(const TA *__restrict A, const float *__restrict B, long ldb, Epilogue &&epilogue) {
  V c[RH][RW];
  MN_UNROLL for (int y = 0; y < RH; ++y)
    MN_UNROLL for (int x = 0; x < RW; ++x) c[y][x] = V{};
  // One channel of every group: all pixels of these kernel rows times its weights.
  auto add = [&]<int CHANNEL>(const TA *a, const float *w) __attribute__((always_inline)) {
    V b[KR][G::KW];
    MN_UNROLL for (int kh = 0; kh < KR; ++kh)
      MN_UNROLL for (int kw = 0; kw < G::KW; ++kw) b[kh][kw] = load<V>(w + ((kh * G::KW + kw) * GROUP + CHANNEL) * ldb);
    each_tap<G, RH, RW, KR>(
        [&](int row, int column) __attribute__((always_inline)) {
          V v = load<V>(a + G::at(row, column));
          if constexpr (GROUP > 1) v = spread<GROUP, CHANNEL>(v, Counted<W>());
          return v;
        },
        [&](int y, int x, int kh, int kw, V v) __attribute__((always_inline)) { c[y][x] += v * b[kh][kw]; });
  };
  MN_NOUNROLL for (int kh = 0; kh < G::KH; kh += KR)
    [&]<int... CHANNEL>(Sequence<int, CHANNEL...>) __attribute__((always_inline)) {
      (add.template operator()<CHANNEL>(A + G::at(kh * G::DH, 0), B + kh * G::KW * GROUP * ldb), ...);
    }(Counted<GROUP>());
  epilogue(c);
}

// ``element`` of int32, handed sums of floats that are whole.
template <class Element> MN_INLINE auto in_words(Element &element) {
  return [&element](long y, long x, long n, auto v) __attribute__((always_inline)) {
    element(y, x, n, __builtin_convertvector(v, Int<decltype(v)>));
  };
}

// Calls tile.operator()<RH, RW, KR>(a, y, x, n) for each tile of a depthwise convolution and each vector of channels;
// SMALL: the weights of a tap are one vector, so that those of nine taps fit the registers. Two cache lines of each pixel's
// channels, or one, are done for all pixels before the next where the first-level cache keeps these lines of as many image
// rows as a window has: then each comes from further away once, not once for each row.
template <class G, int ROWS, int MOST, bool SMALL, class TA, class Tile>
MN_INLINE void each_depthwise(const TA *A, Tile &&tile) {
  constexpr bool WHOLE = SMALL && G::KH * G::KW <= 9;  // else the taps of one kernel row at a time
  constexpr int KR = WHOLE ? G::KH : 1, HEIGHT = G::OW == 1 ? MOST : WHOLE && MOST > 1 ? 2 : 1;
  constexpr int LINE = 64 / sizeof(TA);
  constexpr long KEPT = ((G::KH - 1) * G::DH + 1) * G::PITCH * 64, MOST_KEPT = 24 << 10;
  constexpr int SOME = 2 * KEPT <= MOST_KEPT ? 2 * LINE : KEPT <= MOST_KEPT ? LINE : G::C;
  MN_NOUNROLL for (int first = 0; first < G::C; first += SOME)
    Cut<ROWS, G::OW, MOST / HEIGHT, HEIGHT>::each([&]<int RH, int RW>(long y, long x) __attribute__((always_inline)) {
      const TA *a = A + G::at(y * G::SH, x * G::SW);
      const int end = first + SOME < G::C ? first + SOME : G::C;
      MN_NOUNROLL for (int n = first; n < end; n += W) tile.template operator()<RH, RW, KR>(a + n, y, x, n);
    });
}

// ROWS rows of G::OW output pixels of a convolution of G::C channels in as many groups, or in groups of GROUP (a divisor
// of W) whose outputs are as many, at most MOST pixels at once; weights B [KH * KW * GROUP][ldb]. Vectors over channels:
// A and B are read up to the next multiple of W, ``element(y, x, n, v)`` gets the ragged end as it is. ``ahead`` as in ``conv``:
// a tile's lines are asked for while the one above it is multiplied, since what is stored may have left the caches.
template <class G, int ROWS, int MOST, int GROUP = 1, class TA, class Element, class Ahead = Nothing>
MN_INLINE void depthwise(const TA *A, const float *B, long ldb, Element &&element, Ahead &&ahead = Nothing{}) {
  static_assert(W % GROUP == 0);
  each_depthwise<G, ROWS, MOST, GROUP == 1>(
      A, [&]<int RH, int RW, int KR>(const TA *a, long y, long x, long n) __attribute__((always_inline)) {
        if (ROOM && y + RH < ROWS)
          MN_UNROLL for (int i = 0; i < RH * RW; ++i) ahead(y + RH + i / RW, x + i % RW, n);
        depthwise_tile<G, RH, RW, KR, GROUP>(a, B + n, ldb, [&](auto &c) __attribute__((always_inline)) {
          MN_UNROLL for (int i = 0; i < RH * RW; ++i) element(y + i / RW, x + i % RW, n, c[i / RW][i % RW]);
        });
      });
}
}  // namespace mn
