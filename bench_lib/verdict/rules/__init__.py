"""How a metric becomes a verdict: by chance, by a threshold, or exactly."""
