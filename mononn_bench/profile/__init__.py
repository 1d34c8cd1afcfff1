"""What happens inside a run: each system's own profiler, Nsight where it is, and one timeline of them all."""
