"""The explorer: a page that shows what each dim is worth, and the endpoints that it calls."""
