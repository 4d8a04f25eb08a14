"""Filters on payloads: their language, columns of payload fields in memory, and the masks of rows that match."""
