"""Compilers called, artifacts kept, networks run: on persistent workers, on a GPU, on the emulator."""
