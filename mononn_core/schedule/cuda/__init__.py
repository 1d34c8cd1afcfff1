"""Graph to one cooperative CUDA kernel's Program."""
