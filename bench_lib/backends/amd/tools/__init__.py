"""The answers of ROCm's own tools, in this project's words and units: a module for each.

A tool may be missing, hang, be refused or print garbage.  That is a `ToolError` with its cause,
or a figure that is None.
"""
