"""The suite: it compares `mononn` with other inference systems and leaves records that can be believed."""
