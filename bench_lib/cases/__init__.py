"""Cases: the measured units, from the tables of a matrix."""
