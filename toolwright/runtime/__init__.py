"""In which process each role of a run lives: all in this one, or each in an actor of a Ray cluster."""
