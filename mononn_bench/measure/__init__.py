"""Measuring: one process a system, rounds of interleaved blocks, checked answers."""
