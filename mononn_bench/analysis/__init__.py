"""From immutable records to estimates, intervals and verdicts."""
