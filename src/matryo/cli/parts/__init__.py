"""Parts of the verbs: how new items are opened, and how the thresholds of a cascade are chosen."""
