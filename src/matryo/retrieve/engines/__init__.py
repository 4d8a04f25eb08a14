"""Engines run the stages of a plan: in numpy, as compiled loops, or with torch."""
