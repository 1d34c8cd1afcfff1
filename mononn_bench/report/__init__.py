"""From an analysed table to files: CSV, Markdown and figures."""
