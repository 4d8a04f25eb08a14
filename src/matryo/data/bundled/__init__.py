"""Datasets included in the package: emoji drawings, emoji names, and the nouns of WordNet."""
