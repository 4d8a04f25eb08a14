"""The stores are tested where their libraries are installed: `make clients` does that."""

import importlib.util

STORES = {"test_langchain_store.py": "langchain_tests", "test_llama_index_store.py": "llama_index"}
STORES["test_integrations_page.py"] = "langchain_tests"   # which is installed with the other
collect_ignore = [name for name, needs in STORES.items() if importlib.util.find_spec(needs) is None]
