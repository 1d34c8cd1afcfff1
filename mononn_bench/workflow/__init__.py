"""What the Snakefile calls: the checked configuration, content-addressed paths, and the driver of `make bench`."""
