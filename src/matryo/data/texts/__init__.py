"""Text splits: texts in memory or in files, and the tokenizer that turns them into ids."""
