"""The version of the package, as artifacts state it."""

VERSION = "0.2.0"
