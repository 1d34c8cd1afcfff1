#pragma once
#include "clocks.hpp"
namespace emu {
inline void access(uintptr_t, uint32_t, uint32_t, uintptr_t, Op = Op::none) {}
inline bool shadow_begin() { return true; }
}
