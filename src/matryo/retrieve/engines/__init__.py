"""Engines: what runs the stages of a plan, in numpy, compiled, or with torch."""
