"""From the start of a process to its first answer, and what processes of one network hold."""
