"""What stands in for machines, devices, workers and tools that tests do not have."""
