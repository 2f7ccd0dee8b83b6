"""Starting workers and speaking with them; nothing here imports torch."""
