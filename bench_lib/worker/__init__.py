"""The process that uses the device: it imports torch, and few of our own modules."""
