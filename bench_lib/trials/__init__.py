"""Arrangements that answer a question about the machine itself, or about two of them."""
