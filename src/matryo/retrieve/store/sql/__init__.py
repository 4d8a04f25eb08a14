"""The SQLite file of a store: every statement, and filters on payloads."""
