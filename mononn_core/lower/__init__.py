"""What follows from a Schedule: the Program, by a visible list of steps for every target."""
