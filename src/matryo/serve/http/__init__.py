"""HTTP without a framework: requests with caps, errors in OpenAI's shape, keys, metrics and the description."""
