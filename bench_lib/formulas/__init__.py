"""What work comes to by formula: FLOPs, bytes, sizes, bandwidths, ceilings."""
