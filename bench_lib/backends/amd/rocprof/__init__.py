"""ROCm's profilers: how each is called, and its output of kernels and counters."""
