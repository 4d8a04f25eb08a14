"""Parts of the verbs: opening new items, sources and subjects, and choosing the thresholds of a cascade."""
