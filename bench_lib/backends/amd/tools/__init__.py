"""What ROCm's own tools say, in this project's words and units.

Everything here may be missing, hang, be refused or print garbage; each of these is a
`ToolError` with its cause or a figure that is None, never more.  Nothing here imports torch
or opens a device.
"""
