"""mononn: a compiler that turns a whole static network into one function."""

__version__ = "0.1.0"
