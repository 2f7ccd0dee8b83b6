"""ROCm's profilers: how each is called, and what it leaves of kernels and counters."""
