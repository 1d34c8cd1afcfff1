"""The Schedule as a value, and what all decisions are made of: groups, views, operands, loops."""
