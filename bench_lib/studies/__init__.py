"""The workshop guide's exercises: which cases each one measures, and what it makes of them.

Each module folds figures into rows, and rows into a table and sentences, without a device:
``precision``, ``compiling`` (modes, and depth), ``batches`` (a sweep, and the largest batch) and
``sheet`` (what the history fills of the guide's results sheet).  The engine measures the cases,
writes them down and judges them as it does the suite's.
"""
