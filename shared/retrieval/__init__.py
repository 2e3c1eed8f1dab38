"""Collections of documents in PostgreSQL with pgvector: rows by tenant, search by vectors and words within a time."""
