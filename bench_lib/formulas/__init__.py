"""Figures of work by formula: FLOPs, bytes, sizes, bandwidths, ceilings."""
