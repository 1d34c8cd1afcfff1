// Convolutions in groups of one channel or a few, as many out as in: a thread has neighbouring channels of some output
// pixels of an image row, and uses a pixel for all of these whose windows hold it.
#pragma once
#include "mononn_matmul.cuh"

namespace mn {

// Geometry of a convolution's windows: LDA elements between pixels, PITCH pixels between image rows of the bordered
// input, OW output pixels a row, kernel, strides, dilations.
template <int LDA_, int PITCH_, int OW_, int KH_, int KW_, int SH_, int SW_, int DH_, int DW_> struct Windows {
  static constexpr int OW = OW_, KH = KH_, KW = KW_, SH = SH_, SW = SW_, DH = DH_, DW = DW_;
  static constexpr int LDA = LDA_, PITCH = PITCH_;
  static constexpr int LAST = (KH - 1) * DH * PITCH + (OW - 1) * SW + (KW - 1) * DW + 1;  // pixels of a row's windows
  static MN_DEVICE constexpr int at(int row, int column) { return (row * PITCH + column) * LDA; }
  // Image rows, of ROWS at most, whose windows lie within ``pixels``.
  template <int ROWS> static MN_DEVICE int rows(int pixels) { return min(ROWS, (pixels - LAST) / (SH * PITCH) + 1); }
};

// ROWS image rows of PANEL channels at most, in groups of GROUP, by a block. A thread takes PX pixels of V channels at a
// time; weights b lie [KH KW GROUP][ldb]. WHOLE: there are always PANEL channels, and V divides them.
template <class A, class B, class G, int ROWS, int PANEL, int GROUP, int PX, int V, bool WHOLE> struct Depthwise {
  static constexpr int STRIPS = (G::OW + PX - 1) / PX, WIDE = (PANEL + V - 1) / V;
  static_assert(PX <= G::OW && (V % GROUP == 0 || V == 1), "a strip lies in a row, a group in a thread");

  // ``pixels`` and ``columns``: what there is of a task's. ``element(y, x, n, Width<N>{}, valid)``: see Visit.
  template <class Element>
  static MN_DEVICE void run(const A *a, int pixels, const B *b, int ldb, int columns, Element &&element) {
    const int total = G::template rows<ROWS>(pixels) * (STRIPS * WIDE);
    MN_NOUNROLL for (int at = thread(); at < total; at += THREADS) {
      const int n = at % WIDE * V, x = at / WIDE % STRIPS * PX, y = at / (WIDE * STRIPS);
      if (WHOLE || n + V <= columns) {
        strip<V>(a, b, ldb, y, x, n, element);
      } else {
        MN_NOUNROLL for (int u = n; u < columns; ++u) strip<1>(a, b, ldb, y, x, u, element);
      }
    }
  }

 private:
  // Output pixels [x, x + PX) of row y, N channels from n on. The last strip of a row begins earlier, so that it ends
  // where the row does, and stores what is its own.
  template <int N, class Element>
  static MN_DEVICE void strip(const A *a, const B *b, int ldb, int y, int x, int n, Element &element) {
    const int first = G::OW % PX ? min(x, G::OW - PX) : x;
    const A *pixels = a + G::at(y * G::SH, first * G::SW) + (N % GROUP ? n / GROUP * GROUP : n);
    float sums[PX][N] = {};
    if constexpr (G::KH * G::KW * GROUP <= 9) {
      MN_UNROLL for (int i = 0; i < G::KH; ++i) add<N>(pixels, b + n, ldb, i, sums);
    } else {
      MN_NOUNROLL for (int i = 0; i < G::KH; ++i) add<N>(pixels, b + n, ldb, i, sums);
    }
    MN_UNROLL for (int p = 0; p < PX; ++p)
      if (G::OW % PX == 0 || first + p >= x) element(y, first + p, n, Width<N>{}, true)(sums[p]);
  }
  // Row i of the kernel, one channel of every group after the other.
  template <int N> static MN_DEVICE void add(const A *pixels, const B *b, int ldb, int i, float (&sums)[PX][N]) {
    MN_UNROLL for (int c = 0; c < GROUP; ++c) {
      float w[G::KW][N];
      MN_UNROLL for (int j = 0; j < G::KW; ++j) {
        const auto taken = load<N>(b + ((i * G::KW + j) * GROUP + c) * ldb);
        MN_UNROLL for (int u = 0; u < N; ++u) w[j][u] = to_float(taken[u]);
      }
      MN_UNROLL for (int column = 0; column <= (PX - 1) * G::SW + (G::KW - 1) * G::DW; ++column) {
        const auto taken = load<N>(pixels + G::at(i * G::DH, column) + (N % GROUP ? c : 0));
        MN_UNROLL for (int j = 0; j < G::KW; ++j)
          MN_UNROLL for (int p = 0; p < PX; ++p)
            if (p * G::SW + j * G::DW == column)
              MN_UNROLL for (int u = 0; u < N; ++u)
                sums[p][u] += to_float(taken[N % GROUP ? u : u / GROUP * GROUP + c]) * w[j][u];
      }
    }
  }
};

}  // namespace mn
