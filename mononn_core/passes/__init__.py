"""Rewrites of a Graph, each a named step on a list (:mod:`mononn_core.passes.pipeline`)."""
