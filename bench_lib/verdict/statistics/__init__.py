"""How far sets of processes are apart, what explains it, and since when; numbers only."""
