"""The sketch guide: certified exact search, which proves that most rows need not be read."""
