"""Files: baselines, the history of runs, its archive, and anybody's samples."""
