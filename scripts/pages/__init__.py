"""The pages that scripts/make_docs.py generates: reference, results, and their figures."""
