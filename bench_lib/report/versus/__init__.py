"""Two sides beside each other: runs, baselines or kinds of hardware, case by case.

``sides`` finds out what A and B are, ``rows`` aligns them.  Nothing is judged: a verdict needs an
accepted baseline, the case's tolerance and what the whole suite's processes say.
"""
