"""Retrofit: maps that make existing vectors nested, or carry them into the space of another model."""

from matryo.retrofit.choice import Taken
from matryo.retrofit.migration import Migration
from matryo.retrofit.moments import Moments
from matryo.retrofit.retrofit import Retrofit

__all__ = ["Migration", "Moments", "Retrofit", "Taken"]
