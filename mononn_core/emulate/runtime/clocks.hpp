#pragma once
#include "events.hpp"
namespace emu {
inline void clocks_block(Block *) {}
inline void clocks_warp(Warp *) {}
inline void clocks_some(Block *, int) {}
inline void clocks_fence() {}
inline void clocks_release(const void *, bool, bool) {}
inline void clocks_acquire(const void *, bool) {}
inline void clocks_begin() {}
}
