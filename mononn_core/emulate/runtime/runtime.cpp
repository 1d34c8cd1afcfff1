// The emulator's runtime, one translation unit; interface.h is its face to Python, mononn_ptx.cuh to kernels.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "primitives.hpp"
#include "hooks.hpp"
#include "launch.hpp"
