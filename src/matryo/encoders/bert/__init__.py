"""BERT in plain PyTorch, and a reader for folders of public weights."""
