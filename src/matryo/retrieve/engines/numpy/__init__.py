"""The numpy engine: plain array code that every other engine is tested against."""
