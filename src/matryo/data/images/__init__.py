"""Image splits: folders, list files, packed files, tar shards and arrays, all decoded in one place."""
