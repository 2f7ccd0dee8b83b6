"""The side that touches the device: torch, and of ours what needs the standard library only."""
