"""BERT in plain PyTorch, and the folders its public weights come in."""
