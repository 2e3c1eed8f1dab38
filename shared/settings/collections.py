"""The settings of collections: the embedding model of new ones, and the bounds of a tenant's documents."""

from dataclasses import dataclass

from shared.settings.setting import number, text


@dataclass(frozen=True)
class CollectionSettings:
    """Collections of documents."""

    embedding_model: str = text(
        "", "a model's name", "embeds the documents of collections that name no model; unset: their words are searched"
    )
    max_tenant_documents: int = number(
        10_000, "documents", (1, 10_000_000), "documents in all collections of one tenant"
    )
    max_tenant_document_bytes: int = number(
        67_108_864,
        "bytes",
        (1_024, 10**12),
        "text of all these documents; with chunks of 200 tokens, 64 MiB are about 80,000 chunks",
    )
    max_document_bytes: int = number(
        16_777_216,
        "bytes",
        (1_024, 1_073_741_824),
        "longer files get status 413; a text in JSON is a body of a request",
    )
    max_document_chunks: int = number(
        4_096, "chunks", (1, 1_000_000), "chunks of one document, which is embedded and written as a whole"
    )
