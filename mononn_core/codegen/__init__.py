"""A Program as source: C++ for a CPU, CUDA C++ for a GPU."""
