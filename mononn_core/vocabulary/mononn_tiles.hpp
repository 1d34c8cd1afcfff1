// Products and direct convolutions in tile registers in generated CPU code (Intel AMX: SDM, volume 1, chapter 18): uint8 by
// int8 with exact int32 sums, and bfloat16 with float sums. Operands lie as those of mononn_dot.hpp.
//
// A tile register holds up to 16 rows of 64 bytes. Four hold sums, of 16 columns each; two hold rows of A; two hold STEP
// groups of terms of 16 columns of B. A multiplication takes a cycle a row of A, so rows are cut evenly.
#pragma once
#include "mononn_dot.hpp"

namespace mn {

// Linux keeps tile registers for a process that asks for them (arch_prctl(2), ARCH_REQ_XCOMP_PERM of XTILEDATA); what
// a thread leaves in them is saved whenever it is put off its core.
struct TileRegisters {
#if defined(__AMX_TILE__)
  static inline bool allowed = false;
  explicit TileRegisters(const mononn_call *call) {
    if (__atomic_load_n(&allowed, __ATOMIC_RELAXED)) return;
    if (syscall(SYS_arch_prctl, 0x1023, 18) == 0) __atomic_store_n(&allowed, true, __ATOMIC_RELAXED);
    else fail(call, MONONN_ERROR_TILES, 0, 0);
  }
  ~TileRegisters() {
    if (__atomic_load_n(&allowed, __ATOMIC_RELAXED)) asm volatile("tilerelease");
  }
#else
  static constexpr bool allowed = true;
  explicit TileRegisters(const mononn_call *) {}
#endif
};

// What the eight registers hold, as ldtilecfg reads it.
struct alignas(64) TileShapes {
  uint8_t palette, first_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
constexpr TileShapes tile_shapes(int rows, int step) {
  TileShapes s{};
  s.palette = 1;
  for (int t = 0; t < 8; ++t) {
    s.bytes[t] = (uint16_t)(t == 4 || t == 5 ? 4 * step : 64);
    s.rows[t] = (uint8_t)(t < 6 ? rows : step);
  }
  return s;
}
// The eight registers, and what they hold now: loading that takes as long as multiplying ten tiles. Compiled without
// the instructions they are in memory, and everything is computed as the manual says.
struct Tiles {
  const TileShapes *now = nullptr;
  template <int R, int STEP> __attribute__((always_inline)) void hold() {
    static_assert(W == 16 && R <= 16 && STEP <= 16);
    alignas(64) static constexpr TileShapes shapes = tile_shapes(R, STEP);
#if defined(__AMX_TILE__)
    if (now != &shapes) asm volatile("ldtilecfg %0" : : "m"(shapes));
#endif
    now = &shapes;
  }
#if defined(__AMX_TILE__)
  template <int T> __attribute__((always_inline)) void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
  template <int T> __attribute__((always_inline)) void load(const void *p, long stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
  }
  template <int T> __attribute__((always_inline)) void store(void *p, long stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
  }
  template <class TA, int C, int A, int B> __attribute__((always_inline)) void multiply() {
    if constexpr (std::is_same_v<TA, bf16>) asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    else asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
#else
  alignas(64) unsigned char data[8][16][64];
  template <int T> void zero() { __builtin_memset(data[T], 0, sizeof data[T]); }
  template <int T> void load(const void *p, long stride) {
    zero<T>();
    for (int r = 0; r < now->rows[T]; ++r) __builtin_memcpy(data[T][r], (const char *)p + r * stride, now->bytes[T]);
  }
  template <int T> void store(void *p, long stride) {
    for (int r = 0; r < now->rows[T]; ++r) __builtin_memcpy((char *)p + r * stride, data[T][r], now->bytes[T]);
  }
  template <class TA, int C, int A, int B> void multiply() {
    constexpr bool WHOLE = !std::is_same_v<TA, bf16>;
    using TB = std::conditional_t<WHOLE, int8_t, TA>;
    using Sum = std::conditional_t<WHOLE, int32_t, float>;
    constexpr int GROUP = 4 / sizeof(TA);
    for (int m = 0; m < now->rows[C]; ++m)
      for (int k = 0; k < now->bytes[A] / 4; ++k)
        for (int n = 0; n < now->bytes[C] / 4; ++n) {
          const TA *a = (const TA *)data[A][m] + k * GROUP;
          const TB *b = (const TB *)data[B][k] + n * GROUP;
          for (int t = 0; t < GROUP; ++t)
            if constexpr (WHOLE) ((Sum *)data[C][m])[n] += (int32_t)a[t] * b[t];
            else ((Sum *)data[C][m])[n] += to_float(a[t]) * to_float(b[t]);
        }
  }
#endif
};

// The first ``bytes`` of a row of a tile, and zeros.
MN_INLINE void copy_row(void *row, const void *from, long bytes) {
#if defined(__AVX512BW__)
  *(x86::I512 *)row = x86::load_line(from, bytes ? ~0ull >> (64 - bytes) : 0);
#else
  __builtin_memset(row, 0, 64);
  __builtin_memcpy(row, from, bytes);
#endif
}
template <int N, class F> MN_INLINE void each_of(F &&f) {
  [&]<int... I>(Sequence<int, I...>) __attribute__((always_inline)) {
    (f.template operator()<I>(), ...);
  }(Counted<N>());
}

// N rows in tiles of R, an even number where they are taken in pairs: the last ones overlap.
template <int N, int MOST> struct TileRows {
  static constexpr int PAIR = N > 16 && MOST > 16 ? 2 : 1;
  static constexpr int BLOCKS = (N + 16 * PAIR - 1) / (16 * PAIR), COUNT = BLOCKS * PAIR, R = (N + COUNT - 1) / COUNT;
  static constexpr long start(long t) { return t * R < N - R ? t * R : N - R; }
};

// RT x CT tiles of sums = A B, or += where there are ``more``, in rows ``lds`` bytes apart. Rows of A start at a[t], lda
// bytes apart; a row of B has ``ldb`` bytes. ``walk(step)`` calls ``step(at, terms)`` for each STEP groups of terms, ``at``
// elements behind the first; where ``terms`` are fewer (PARTIAL: there are such), copies with zeros behind them are
// multiplied. LINES lines behind ``ahead`` are fetched into the second-level cache with each step.
template <int RT, int CT, int STEP, int R, int LINES, bool PARTIAL, class TA, class TB, class Walk>
MN_INLINE void multiply_tiles(Tiles &tiles, const TA *const (&a)[RT], long lda, const TB *B, long ldb, void *sums,
                              long lds, bool more, const char *ahead, Walk &&walk) {
  each_of<RT * CT>([&]<int T>() __attribute__((always_inline)) {
    if (more) tiles.load<T>((char *)sums + T / CT * R * lds + T % CT * 64, lds);
    else tiles.zero<T>();
  });
  constexpr int GROUP = 4 / sizeof(TA);
  alignas(64) TA rows[PARTIAL ? RT * R : 1][16 * GROUP];
  alignas(64) TB panel[PARTIAL ? STEP : 1][CT * 16 * GROUP];
  walk([&](long at, long terms) __attribute__((always_inline)) {
    MN_UNROLL for (int line = 0; line < LINES; ++line) __builtin_prefetch(ahead + 64 * line, 0, 2);
    ahead += 64 * LINES;
    const bool fewer = PARTIAL && terms < STEP * GROUP;
    if (fewer) {
      MN_UNROLL for (int i = 0; i < RT; ++i)
        for (int r = 0; r < R; ++r) copy_row(rows[i * R + r], (const char *)(a[i] + at) + r * lda, terms * sizeof(TA));
      for (int g = 0; g < STEP; ++g)
        MN_UNROLL for (int j = 0; j < CT; ++j)
          copy_row(panel[g] + j * 16 * GROUP, (const char *)B + g * ldb + 64 * j, g * GROUP < terms ? 64 : 0);
    }
    each_of<CT>([&]<int J>() __attribute__((always_inline)) {
      constexpr int B0 = 6 + J % 2;
      if (fewer) tiles.load<B0>(panel[0] + J * 16 * GROUP, sizeof panel[0]);
      else tiles.load<B0>((const char *)B + 64 * J, ldb);
      each_of<RT>([&]<int I>() __attribute__((always_inline)) {
        if constexpr (J == 0) {
          if (fewer) tiles.load<4 + I>(rows[I * R], 64);
          else tiles.load<4 + I>(a[I] + at, lda);
        }
        tiles.multiply<TA, I * CT + J, 4 + I, B0>();
      });
    });
    B = (const TB *)((const char *)B + (fewer ? (terms + GROUP - 1) / GROUP : STEP) * ldb);
  });
  each_of<RT * CT>([&]<int T>() __attribute__((always_inline)) {
    tiles.store<T>((char *)sums + T / CT * R * lds + T % CT * 64, lds);
  });
}

// As ``dot``: M x PANEL of C = A B, in blocks of at most MOST rows, STEP groups of terms at a time. Blocks take turns
// with a part of the panel and of their rows that fits the first-level cache: the second one gives half of what four
// multiplications take in their time.
template <int M, int PANEL, int MOST, int STEP, class TA, class TB, class Element>
static inline void tile_dot(Tiles &tiles, const TA *A, long lda, const TB *B, long K, Element &&element) {
  using D = Dot<TA, TB>;
  using Sum = typename D::Sum;
  using Rows = TileRows<M, MOST>;
  constexpr int RT = Rows::PAIR, R = Rows::R, NV = PANEL / W, CT = NV < 4 / RT ? NV : 4 / RT;
  constexpr int TURNS = Rows::BLOCKS < 4 ? Rows::BLOCKS : 4, PART = 8 * STEP;
  constexpr int PASSES = Rows::BLOCKS * (NV / CT), LINES = (STEP * NV + PASSES - 1) / PASSES;
  const long groups = (K + D::GROUP - 1) / D::GROUP;
  const char *ahead = (const char *)(B + groups * PANEL * D::GROUP);
  alignas(64) Lane<Sum> sums[TURNS][RT * R][PANEL];
  tiles.hold<R, STEP>();
  for (int first = 0; first < Rows::BLOCKS; first += TURNS)
    for (long from = 0; from < groups; from += PART) {
      const long to = from + PART < groups ? from + PART : groups;
      for (int b = first; b < first + TURNS && b < Rows::BLOCKS; ++b) {
        const TA *a[RT];
        MN_UNROLL for (int i = 0; i < RT; ++i) a[i] = A + Rows::start(b * RT + i) * lda;
        auto &mine = sums[b - first];
        MN_NOUNROLL for (int n = 0; n < NV; n += CT) {
          multiply_tiles<RT, CT, STEP, R, LINES, true>(
              tiles, a, lda * sizeof(TA), B + (from * NV + n) * W * D::GROUP, NV * 64, mine[0] + n * W, NV * 64, from > 0, ahead,
              [&](auto &&step) __attribute__((always_inline)) {
                MN_NOUNROLL for (long g = from; g < to; g += STEP) step(g * D::GROUP, K - g * D::GROUP);
              });
          ahead += (to - from + STEP - 1) / STEP * LINES * 64;
        }
        if (to < groups) continue;
        MN_UNROLL for (int i = 0; i < RT; ++i) {
          const long t = b * RT + i, start = Rows::start(t);
          MN_NOUNROLL for (long r = t * R - start; r < R; ++r)
            MN_UNROLL for (int j = 0; j < NV; ++j) element(start + r, (long)j * W, mn::load<Sum>(mine[i * R + r] + j * W));
        }
      }
    }
}

// ROWS rows of G::OW output pixels in tiles of at most 16 of a row, the last ones of a row overlapping. All rows are one
// where windows are pixels that lie one after the other, or rows have one pixel. ALONG: elements between a row's windows.
template <class G, int ROWS, int MOST> struct TilePixels {
  static constexpr bool DENSE = G::KH == 1 && G::KW == 1 && G::SH == 1 && G::SW == 1 && G::PITCH == G::OW;
  static constexpr bool FLAT = DENSE || G::OW == 1;
  static constexpr long ALONG = DENSE ? G::LDA : G::OW == 1 ? G::at(G::SH, 0) : G::at(0, G::SW);
  static constexpr int WIDTH = FLAT ? ROWS * G::OW : G::OW, HEIGHT = FLAT ? 1 : ROWS;
  static constexpr int ACROSS = (WIDTH + 15) / 16, R = (WIDTH + ACROSS - 1) / ACROSS, COUNT = ACROSS * HEIGHT;
  static constexpr int PAIR = COUNT > 1 && MOST > 16 ? 2 : 1, BLOCKS = (COUNT + PAIR - 1) / PAIR;
  static constexpr long row(long t) { return t / ACROSS; }
  static constexpr long column(long t) { return t % ACROSS * R < WIDTH - R ? t % ACROSS * R : WIDTH - R; }
  static constexpr long first(long t) { return t < COUNT ? t % ACROSS * R - column(t) : R; }
};

// As ``dot_conv``, STEP groups of terms at a time.
template <class G, int ROWS, int PANEL, int MOST, int STEP, bool JOINED, class TA, class TB, class Element>
static inline void tile_conv(Tiles &tiles, const TA *A, const TB *B, Element &&element) {
  using D = Dot<TA, TB>;
  using Run = Runs<G, D, JOINED>;
  using P = TilePixels<G, ROWS, MOST>;
  constexpr int RT = P::PAIR, R = P::R, NV = PANEL / W, CT = NV < 4 / RT ? NV : 4 / RT;
  constexpr bool PARTIAL = Run::TERMS % (STEP * D::GROUP) != 0;
  constexpr long STEPS = (Run::GROUPS + STEP - 1) / STEP;
  constexpr long GROUPS = (long)G::KH * Run::COUNT * Run::GROUPS, PANEL_LINES = GROUPS * NV;
  constexpr int PASSES = P::BLOCKS * (NV / CT), LINES = (STEP * NV + PASSES - 1) / PASSES;
  alignas(64) Lane<typename D::Sum> sums[RT * R * CT * W];
  tiles.hold<R, STEP>();
  long fetched = 0;
  for (int b = 0; b < P::BLOCKS; ++b) {
    const TA *a[RT];
    MN_UNROLL for (int i = 0; i < RT; ++i) {
      const long t = b * RT + i < P::COUNT ? b * RT + i : P::COUNT - 1;
      a[i] = A + G::at(P::row(t) * G::SH, 0) + P::column(t) * P::ALONG;
    }
    MN_NOUNROLL for (int n = 0; n < NV; n += CT) {
      const char *ahead = (const char *)B + 64 * (fetched < PANEL_LINES ? PANEL_LINES + fetched : 0);
      multiply_tiles<RT, CT, STEP, R, LINES, PARTIAL>(tiles, a, P::ALONG * sizeof(TA), B + n * W * D::GROUP, NV * 64, sums, CT * 64, false, ahead,
                                             [](auto &&step) __attribute__((always_inline)) {
        MN_NOUNROLL for (int kh = 0; kh < G::KH; ++kh)
          MN_NOUNROLL for (int r = 0; r < Run::COUNT; ++r)
            MN_NOUNROLL for (int g = 0; g < Run::GROUPS; g += STEP)
              step(G::at(kh * G::DH, r * G::DW) + g * D::GROUP, Run::TERMS - g * D::GROUP);
      });
      fetched += G::KH * Run::COUNT * STEPS * LINES;
      MN_UNROLL for (int i = 0; i < RT; ++i) {
        const long t = b * RT + i;
        MN_NOUNROLL for (long p = P::first(t); p < R; ++p) {
          const long x = P::column(t) + p;
          const long row = P::FLAT ? (long)((unsigned)x / G::OW) : P::row(t);
          const long column = P::FLAT ? (long)((unsigned)x % G::OW) : x;
          MN_UNROLL for (int j = 0; j < CT; ++j)
            element(row, column, (long)(n + j) * W, load<typename D::Sum>(sums + ((i * R + p) * CT + j) * W));
        }
      }
    }
  }
}

}  // namespace mn
