"""Cases: what is measured, from the tables of a matrix."""
