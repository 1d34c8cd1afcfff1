"""What a Schedule of a GPU decides about: groups, tiles, builders of phases."""
