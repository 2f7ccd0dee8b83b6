"""Measure, look again, profile, judge, record: one device and its processes."""
