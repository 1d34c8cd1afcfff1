"""Estimated seconds, to choose between Schedules: never shown as measured."""
