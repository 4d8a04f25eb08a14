"""Datasets that come with the package: emoji drawings, their names, and the nouns of WordNet."""
