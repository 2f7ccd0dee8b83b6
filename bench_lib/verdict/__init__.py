"""From measurements to verdicts: metrics, statistics, validity and the judge."""
