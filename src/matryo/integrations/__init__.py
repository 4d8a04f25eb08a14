"""Vector stores of other libraries over an :class:`~matryo.Index`: each module needs its library.

>>> from matryo.integrations.langchain import MatryoVectorStore      # doctest: +SKIP
>>> from matryo.integrations.llama_index import MatryoVectorStore    # doctest: +SKIP
"""

__all__ = ()
