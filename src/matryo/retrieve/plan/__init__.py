"""Plans: what they are, and how the cheapest one that keeps a recall is chosen."""
