"""A compiled network in the forms that programs are built of: a library with a C header, its one C++ file, a wheel."""

from mononn_core.emit.forms import checked, emit

__all__ = ["checked", "emit"]
