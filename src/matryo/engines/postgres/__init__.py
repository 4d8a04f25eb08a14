"""PostgreSQL with pgvector: the engine, its session, the table and the indexes it finds, filters and binary formats."""
