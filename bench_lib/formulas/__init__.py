"""FLOPs, bytes, sizes, bandwidths and ceilings of work, by formula."""
