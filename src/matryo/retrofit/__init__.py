"""Retrofit: maps that make existing vectors nested without encoding again, and never worse than they were."""

from matryo.retrofit.choice import Taken
from matryo.retrofit.moments import Moments
from matryo.retrofit.retrofit import Retrofit

__all__ = ["Moments", "Retrofit", "Taken"]
