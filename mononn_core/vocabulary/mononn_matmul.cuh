// Products on tensor cores: a multi-stage ring of tiles in shared memory, fed by asynchronous copies.
#pragma once
#include "mononn_cuda.cuh"

namespace mn {

// An epilogue, ``element(m, n, Width<V>{}, valid)``, loads what V neighbours of row m from column n on need (nothing
// where not ``valid``) and returns a function of their V values that stores the result.
template <int V> struct Width {
  static constexpr int value = V;
};
struct Nothing {};

// Hands the sum of PARTS tiles (PART floats apart, rows of LD) to an epilogue: V neighbours a thread in each pass, single
// ones where the tile ends between them. Elements at or past (rows, cols) are left out.
template <int ROWS, int COLS, int V, int PARTS, int PART, int LD> struct Visit {
  static constexpr int WIDE = COLS / V, TOTAL = ROWS * WIDE, PASSES = (TOTAL + THREADS - 1) / THREADS;

  // The loads of one pass, to be issued long before ``store``.
  template <int PASS, class Element> static MN_DEVICE auto ahead(int rows, int cols, Element &element) {
    if constexpr (PASS < PASSES) {
      const int at = PASS * THREADS + thread(), m = at / WIDE, n = at % WIDE * V;
      return element(m, n, Width<V>{}, m < rows && n + V <= cols);
    } else {
      return Nothing{};
    }
  }
  template <int PASS, class Ready, class Element>
  static MN_DEVICE void store(const float *sums, int rows, int cols, Ready &ready, Element &element) {
    if constexpr (PASS < PASSES) {
      const int at = PASS * THREADS + thread(), m = at / WIDE, n = at % WIDE * V;
      if (m < rows && n + V <= cols) give(sums, m, n, ready);
      else ragged(sums, m, n, rows, cols, element);
    }
  }
  template <int FIRST, class Element>
  static MN_DEVICE void rest(const float *sums, int rows, int cols, Element &element) {
    MN_NOUNROLL for (int at = FIRST * THREADS + thread(); at < TOTAL; at += THREADS) {
      const int m = at / WIDE, n = at % WIDE * V;
      if (m < rows && n + V <= cols) give(sums, m, n, element(m, n, Width<V>{}, true));
      else ragged(sums, m, n, rows, cols, element);
    }
  }

 private:
  template <int N> static MN_DEVICE void total(const float *sums, int m, int n, float (&v)[N]) {
    MN_UNROLL for (int part = 0; part < PARTS; ++part) {
      const auto own = load<N>(sums + part * PART + m * LD + n);
      MN_UNROLL for (int u = 0; u < N; ++u) v[u] = part ? v[u] + own[u] : own[u];
    }
  }
  template <class Ready> static MN_DEVICE void give(const float *sums, int m, int n, const Ready &ready) {
    float v[V];
    total(sums, m, n, v);
    ready(v);
  }
  template <class Element>
  static MN_DEVICE void ragged(const float *sums, int m, int n, int rows, int cols, Element &element) {
    if (m >= rows) return;
    MN_NOUNROLL for (int u = 0; u < V; ++u)
      if (n + u < cols) {
        float v[1];
        total(sums, m, n + u, v);
        element(m, n + u, Width<1>{}, true)(v);
      }
  }
};

// Columns [FROM, TO) of ROWS rows of a tile in shared memory become zero.
template <class T, int ROWS, int FROM, int TO, int LD> MN_DEVICE void zero_columns(T *tile) {
  static_assert(TO <= LD, "the rows are wide enough");
  for (int at = thread(); at < ROWS * (TO - FROM); at += THREADS) tile[at / (TO - FROM) * LD + FROM + at % (TO - FROM)] = T{};
}

// C[TM][TN] = A[TM][k] B[k][TN] by a block. T: f16, bf16, or float (three tf32 products). WM x WN warps cover the tile;
// WK groups of them share each step's k and their sums are added in order. WHOLE: k is a
// multiple of TK. VEC: neighbours that the epilogue takes at once. LOCAL_A: row stride of an A that lies in shared memory
// already, or 0. ALIGN_A, ALIGN_B: see copy_tile. STAGED: B, a weight, lies in fragments of 16 x 8 as they are read, a
// panel's side by side and then the next 16 rows' (k rounded up to whole ones), and is brought in stages.
template <class T, int TM, int TN, int TK, int WM, int WN, int WK, int STAGES, bool WHOLE, int VEC, int LOCAL_A, int ALIGN_A,
          int ALIGN_B, bool STAGED>
struct Matmul {
  static constexpr bool HALF = sizeof(T) == 2;
  static constexpr int KSTEP = HALF ? 16 : 8, USED = WM * WN * WK;
  static constexpr int MT = TM / WM / 16, NT = TN / WN / 8;
  static constexpr int LDA = row_stride<T>(TK), LDB = STAGED ? TN : HALF ? row_stride<T>(TN) : column_stride(TN), LDC = column_stride(TN);
  static constexpr int A_SIZE = LOCAL_A ? 0 : TM * LDA, B_SIZE = TK * LDB;
  static constexpr int PARTIALS = WK * TM * LDC * 4;
  static constexpr int BYTES = larger(STAGES * (A_SIZE + B_SIZE) * (int)sizeof(T), PARTIALS);
  // More copies of single threads would hold up the load that asks whether a barrier is passed: its answer comes behind them.
  static constexpr int EARLY = STAGED || STAGES < 5 ? STAGES : 5;
  using Tile = Visit<TM, TN, VEC, WK, TM * LDC, LDC>;
  static_assert(USED <= WARPS && TM == WM * MT * 16 && TN == WN * NT * 8, "warps cover the tile");
  static_assert(TK % (KSTEP * WK) == 0 && STAGES >= 2 && TN % VEC == 0, "whole steps");
  static_assert(!STAGED || (HALF && STAGES <= LANDINGS), "stages of fragments");

  static MN_DEVICE T *b_slot(unsigned char *shared, int slot) { return (T *)shared + slot * B_SIZE; }
  static MN_DEVICE T *a_slot(unsigned char *shared, int slot) { return (T *)shared + STAGES * B_SIZE + slot * A_SIZE; }
  static MN_DEVICE void load_a(unsigned char *shared, int slot, const T *a, int lda, int rows, int k0, int k) {
    if constexpr (LOCAL_A == 0) {
      copy_tile<T, TM, TK, LDA, ALIGN_A, false>(a_slot(shared, slot), a + k0, lda, rows, WHOLE ? TK : k - k0);
    }
  }
  // Terms of the step from k0 on, in whole fragments.
  static MN_DEVICE int terms(int k0, int k) { return WHOLE || k - k0 >= TK ? TK : round_up(k - k0, KSTEP); }
  template <int FIRST = 0>
  static MN_DEVICE void load_b(unsigned char *shared, int slot, const T *b, int ldb, int cols, int k0, int k, uint32_t n) {
    if constexpr (STAGED) start_stage(b_slot(shared, slot), b + k0 * TN, terms(k0, k) * TN * (int)sizeof(T), n);
    else copy_tile<T, TK, TN, LDB, ALIGN_B, !WHOLE, FIRST>(b_slot(shared, slot), b + k0 * ldb, ldb, WHOLE ? TK : k - k0, cols);
  }
  // Starts the copies of B's first EARLY stages; ``run`` with ``fetched`` takes them up. ``stage``: see Turn.
  static MN_DEVICE void fetch(unsigned char *shared, const T *b, int ldb, int cols, int k, uint32_t stage) {
    if (thread() < FIRST_COPIER) return;
    if constexpr (STAGED) {
      MN_UNROLL for (int s = 0; s < EARLY; ++s)
        if (s * TK < k) load_b<FIRST_COPIER>(shared, s, b, ldb, cols, s * TK, k, stage + s);
    } else {
      MN_NOUNROLL for (int s = 0; s < EARLY; ++s)
        if (s * TK < k) load_b<FIRST_COPIER>(shared, s, b, ldb, cols, s * TK, k, stage + s);
    }
    cp_async_commit();
  }

  // ``limit`` columns of ``rows`` rows are handed to ``element`` (see Visit), VEC at a time.
  template <class Element>
  static MN_DEVICE void run(unsigned char *shared, const T *a, int lda, int rows, const T *b, int ldb, int cols, int k,
                            int limit, bool fetched, uint32_t &stage, Element &&element) {
    float c[MT][NT][4] = {};
    const int steps = (k + TK - 1) / TK;
    if constexpr (STAGED) stage_fence();
    sync_block();  // what lay here has been read; a local A has been written
    MN_NOUNROLL for (int s = 0; s < STAGES; ++s) {
      if (s < steps) {
        load_a(shared, s, a, lda, rows, s * TK, k);
        if (!fetched || s >= EARLY) load_b(shared, s, b, ldb, cols, s * TK, k, stage + s);
      }
      cp_async_commit();
    }
    auto ready0 = Tile::template ahead<0>(rows, limit, element);  // their latency hides behind the main loop
    auto ready1 = Tile::template ahead<1>(rows, limit, element);
    int slot = 0, last = STAGES - 1;
    MN_NOUNROLL for (int step = 0; step < steps; ++step) {
      const int k0 = (step + STAGES - 1) * TK;  // what comes where the last step's lay
      const bool more = step > 0 && k0 < k;
      if (step == 0) cp_async_wait<STAGES - 1>();
      else cp_async_wait<STAGES - 2>();
      if (!STAGED || LOCAL_A == 0 || more) sync_block();
      if (more) {
        load_a(shared, last, a, lda, rows, k0, k);
        load_b(shared, last, b, ldb, cols, k0, k, stage + step + STAGES - 1);
      }
      if (step > 0) cp_async_commit();
      if constexpr (STAGED) await_stage(stage + step);
      multiply(LOCAL_A ? a + step * TK : a_slot(shared, slot), b_slot(shared, slot), terms(step * TK, k), c);
      last = slot, slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    if constexpr (STAGED) stage += steps;
    gather(shared, c);
    Tile::template store<0>((const float *)shared, rows, limit, ready0, element);
    Tile::template store<1>((const float *)shared, rows, limit, ready1, element);
    Tile::template rest<2>((const float *)shared, rows, limit, element);
  }

 private:
  static MN_DEVICE int warp_row() { return warp() / WN % WM * MT * 16; }
  static MN_DEVICE int warp_column() { return warp() % WN * NT * 8; }
  static MN_DEVICE int warp_group() { return warp() / (WN * WM); }

  // One step of ``terms`` of TK; each group of warps takes every WK-th part of it.
  static MN_DEVICE void multiply(const T *a, const T *b, int terms, float (&c)[MT][NT][4]) {
    if (USED < WARPS && warp() >= USED) return;
    MN_UNROLL for (int part = 0; part < TK / KSTEP / WK; ++part) {
      const int k0 = (part * WK + warp_group()) * KSTEP;
      if (STAGED && !WHOLE && k0 >= terms) break;  // nothing was brought there
      if constexpr (HALF) multiply_half(a, b, k0, c);
      else multiply_tf32(a, b, k0, c);
    }
  }
  static MN_DEVICE const T *a_row(const T *a, int i, int k0) {
    return a + (warp_row() + i * 16 + lane() % 16) * (LOCAL_A ? LOCAL_A : LDA) + k0 + lane() / 16 * (16 / (int)sizeof(T));
  }
  static MN_DEVICE void multiply_half(const T *a, const T *b, int k0, float (&c)[MT][NT][4]) {
    uint32_t af[MT][4], bf[NT][2];
    MN_UNROLL for (int i = 0; i < MT; ++i) ldmatrix_x4(af[i], a_row(a, i, k0));
    constexpr int NEXT = STAGED ? 16 * 8 : 8;  // eight columns further on
    const T *row = STAGED ? b + k0 * TN + warp_column() / 8 * NEXT + lane() % 16 * 8
                          : b + (k0 + lane() % 16) * LDB + warp_column();
    MN_UNROLL for (int j = 0; j + 1 < NT; j += 2) {
      uint32_t r[4];
      ldmatrix_x4_trans(r, row + (j + lane() / 16) * NEXT);
      bf[j][0] = r[0], bf[j][1] = r[1], bf[j + 1][0] = r[2], bf[j + 1][1] = r[3];
    }
    if constexpr (NT % 2) ldmatrix_x2_trans(bf[NT - 1], row + (NT - 1) * NEXT);
    MN_UNROLL for (int i = 0; i < MT; ++i)
      MN_UNROLL for (int j = 0; j < NT; ++j) mma_16<T>(c[i][j], af[i], bf[j]);
  }
  static MN_DEVICE void multiply_tf32(const T *a, const T *b, int k0, float (&c)[MT][NT][4]) {
    uint32_t bh[NT][2], bl[NT][2];
    MN_UNROLL for (int j = 0; j < NT; ++j)
      MN_UNROLL for (int h = 0; h < 2; ++h)
        split_tf32(b[(k0 + lane() % 4 + h * 4) * LDB + warp_column() + j * 8 + lane() / 4], bh[j][h], bl[j][h]);
    MN_UNROLL for (int i = 0; i < MT; ++i) {
      uint32_t r[4], ah[4], al[4];
      ldmatrix_x4(r, a_row(a, i, k0));
      MN_UNROLL for (int e = 0; e < 4; ++e) split_tf32(bits_float(r[e]), ah[e], al[e]);
      MN_UNROLL for (int j = 0; j < NT; ++j) mma_tf32x3(c[i][j], ah, al, bh[j], bl[j]);
    }
  }

  // The groups' sums, side by side in shared memory.
  static MN_DEVICE void gather(unsigned char *shared, const float (&c)[MT][NT][4]) {
    cp_async_wait<0>();
    sync_block();
    float *own = (float *)shared + (warp_group() * TM + warp_row() + lane() / 4) * LDC + warp_column() + lane() % 4 * 2;
    if (USED == WARPS || warp() < USED) {
      MN_UNROLL for (int i = 0; i < MT; ++i)
        MN_UNROLL for (int j = 0; j < NT; ++j)
          MN_UNROLL for (int h = 0; h < 2; ++h)
            *(pair *)(own + (i * 16 + h * 8) * LDC + j * 8) = pair{float_bits(c[i][j][2 * h]), float_bits(c[i][j][2 * h + 1])};
    }
    sync_block();
  }
};

}  // namespace mn
