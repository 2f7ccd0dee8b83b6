"""Starts workers and talks to them; nothing here imports torch."""
