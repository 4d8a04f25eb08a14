"""The sketch guide: exact search that proves which rows need not be read."""
