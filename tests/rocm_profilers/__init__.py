"""ROCm's profilers, none of which is on this machine, as executables of our own.

They take the flags that their release takes and no others, run the application behind them, and
write the files that it writes; what the application "ran" it says itself (`app.py`).
"""
