"""Computes FLOPs, bytes, sizes, bandwidths and rooflines by formula."""
