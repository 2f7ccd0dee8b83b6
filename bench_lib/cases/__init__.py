"""Builds cases, the units that are measured, from the tables of a matrix."""
