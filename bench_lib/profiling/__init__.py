"""The device's work in a step: read, store, compare and explain profiles.

``names`` has the kernels' names and purposes, ``kernels`` compares two profiles, ``traces`` reads
torch.profiler's traces, ``answers`` answers the workshop guide's questions, and ``store`` reads
and writes ``kernels.json``.
"""
