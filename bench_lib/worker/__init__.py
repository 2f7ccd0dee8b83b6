"""The side that touches the device: imports torch and model, nothing else of ours above it."""
