"""Files: baselines, the history of runs, its cache, and samples of other programs."""
