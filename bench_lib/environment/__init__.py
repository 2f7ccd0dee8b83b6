"""Everything besides the hardware that may affect speed, and whether a machine can measure well.

Nothing here imports torch or opens a device.  A value that cannot be read is None.
"""
