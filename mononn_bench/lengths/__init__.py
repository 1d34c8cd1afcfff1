"""Requests of many lengths, drawn from a published distribution, answered by every system in each of its forms."""
