"""What is decided for a network: the cheapest Schedule of a CPU or a GPU, the space of others, and their prices."""
