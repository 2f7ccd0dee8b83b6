"""Whether what was measured tells of the software, or of what happened to the device."""
