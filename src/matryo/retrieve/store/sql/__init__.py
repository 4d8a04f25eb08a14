"""The SQLite file of a store: transactions, and every statement."""
