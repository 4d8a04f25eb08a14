"""The torch engine: whole plans on a GPU."""
