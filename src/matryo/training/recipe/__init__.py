"""Recipes: the fields, the rules between them, how they are read, and whether they fit the data. Without torch."""
