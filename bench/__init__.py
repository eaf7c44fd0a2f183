"""Figures of the daemon as ratios to floors measured in the same run: `python -m bench`."""
