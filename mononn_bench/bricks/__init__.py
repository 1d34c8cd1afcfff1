"""Networks cut into bricks (runs of layers), each measured once and kept, whatever network it comes from."""
