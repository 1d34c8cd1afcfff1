"""Hand-written kernels, one file each: what a task of it means, how it is scheduled, and its calls in C++ and CUDA."""
