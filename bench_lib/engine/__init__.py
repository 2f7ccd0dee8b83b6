"""Measure, re-measure, profile, judge, record: one device and its processes."""
