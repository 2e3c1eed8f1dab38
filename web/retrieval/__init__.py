"""Collections of documents: loading, embedding and searching them, and their routes."""
