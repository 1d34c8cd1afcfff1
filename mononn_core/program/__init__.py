"""The monolith: phases of tile tasks, buffers in one arena, and the synchronisation between them."""
