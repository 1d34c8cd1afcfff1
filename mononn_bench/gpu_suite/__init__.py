"""The GPU suite: one command for a bare GPU machine, from the source tree, with whatever its Python can import.

    python -m mononn_bench.gpu_suite --out DIR [--minutes N] [--emulate]

Every step runs in a process of its own; what it finds is a row of DIR/records.json, written as the suite goes.
"""
