"""Shards behind a router: the endpoints that a shard answers, and the index that a router makes of many shards."""

from matryo.serve.shards.replicas import Routing
from matryo.serve.shards.router import RoutedIndex

__all__ = ["RoutedIndex", "Routing"]
