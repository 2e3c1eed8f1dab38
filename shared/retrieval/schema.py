"""The tables of collections, the rights of the two roles that use them, and the number of their format.

A transaction for a tenant runs as the role `penstock_tenant`, which sees the rows of the tenant that the transaction
has set (`penstock.tenant`), and no rows if it has set none. Work on all tenants (sizes, indexes, erasure's last check)
runs as `penstock_keeper`. Neither role can log in, and neither is exempt from row-level security.

One index serves the words of all collections: each chunk's words contain a mark with its collection's number, so that
the index finds the words of one collection only. The operator `@@` could not use an index behind row-level security,
because it is not leakproof. The function `penstock.word_matches` therefore looks up as the keeper, with the tenant as a
condition of its own. It returns what ranks need; the texts that are found are then read as the tenant.
"""

from collections.abc import Callable

import psycopg
from psycopg import errors, sql

from shared.retrieval.errors import DatabaseAway

#: The format of the tables that this version writes. A step for each format follows below.
FORMAT = 3
#: Beside each other, the two keys of the advisory locks that one process at a time holds: for changes of the format,
#: and for indexes.
LOCK_CLASS, FORMAT_LOCK, INDEX_LOCK = 7_366_787, 1, 2
#: With the name of a tenant, the key of the lock that is held while files are added.
FILES_LOCK_CLASS = LOCK_CLASS + 1
#: The oldest pgvector that continues the scan of an index after its filter (hnsw.iterative_scan).
_OLDEST_PGVECTOR = (0, 8)
#: How long a process waits for others that change the format or write, in seconds.
_LOCK_S = 20

_ROLES = """
DO $$ DECLARE role text; BEGIN
  FOREACH role IN ARRAY ARRAY['penstock_tenant', 'penstock_keeper'] LOOP
    IF to_regrole(role) IS NULL THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN NOBYPASSRLS NOINHERIT', role);
      EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
      END;
    END IF;
  END LOOP;
END $$;
DO $$ DECLARE role text; BEGIN
  FOREACH role IN ARRAY ARRAY['penstock_tenant', 'penstock_keeper'] LOOP
    BEGIN
      EXECUTE format('SET LOCAL ROLE %I', role);
      SET LOCAL ROLE NONE;
    EXCEPTION WHEN insufficient_privilege THEN
      EXECUTE format('GRANT %I TO %I', role, current_user);
    END;
  END LOOP;
END $$;
"""

_FIRST = """
CREATE TABLE penstock.format (number int NOT NULL, is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only));
INSERT INTO penstock.format (number) VALUES (1);

CREATE TABLE penstock.collections (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id text NOT NULL UNIQUE,
  tenant text NOT NULL CHECK (tenant <> ''),
  name text NOT NULL,
  model text,
  dimensions int,
  language text NOT NULL,
  chunk_tokens int NOT NULL,
  overlap_tokens int NOT NULL,
  version bigint NOT NULL DEFAULT 1,
  documents int NOT NULL DEFAULT 0,
  chunks int NOT NULL DEFAULT 0,
  text_bytes bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  loaded_at timestamptz,
  -- Its documents are being deleted; its name is free.
  gone boolean NOT NULL DEFAULT false,
  UNIQUE (tenant, number)
);
CREATE UNIQUE INDEX collections_by_name ON penstock.collections (tenant, name) WHERE NOT gone;

CREATE TABLE penstock.documents (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant text NOT NULL,
  collection bigint NOT NULL,
  -- Ordered by bytes, so that pages have the same order whatever the database's language is.
  id text NOT NULL COLLATE "C",
  metadata jsonb NOT NULL,
  digest text NOT NULL,
  text_bytes bigint NOT NULL,
  chunks int NOT NULL,
  loaded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (collection, id),
  UNIQUE (tenant, collection, number),
  FOREIGN KEY (tenant, collection) REFERENCES penstock.collections (tenant, number)
);

CREATE TABLE penstock.chunks (
  tenant text NOT NULL,
  collection bigint NOT NULL,
  document bigint NOT NULL,
  ordinal int NOT NULL,
  tokens int NOT NULL,
  text text NOT NULL,
  -- A copy of the document's, because a filter is applied to each chunk that a scan of vectors visits.
  metadata jsonb NOT NULL,
  embedding {vector},
  words tsvector NOT NULL,
  PRIMARY KEY (collection, document, ordinal),
  FOREIGN KEY (tenant, collection, document) REFERENCES penstock.documents (tenant, collection, number)
) WITH (toast_tuple_target = 8160);
-- An exact search reads all vectors of a collection: they stay in the rows, and the text is stored elsewhere first.
ALTER TABLE penstock.chunks ALTER embedding SET STORAGE MAIN, ALTER words SET STORAGE EXTENDED;
-- Statistics contain frequent values, and stay when a tenant's rows are erased.
ALTER TABLE penstock.collections ALTER id SET STATISTICS 0, ALTER name SET STATISTICS 0, ALTER model SET STATISTICS 0;
ALTER TABLE penstock.documents ALTER id SET STATISTICS 0, ALTER metadata SET STATISTICS 0,
  ALTER digest SET STATISTICS 0;
ALTER TABLE penstock.chunks ALTER text SET STATISTICS 0, ALTER metadata SET STATISTICS 0,
  ALTER embedding SET STATISTICS 0, ALTER words SET STATISTICS 0;
-- Each search reads the list of words that are not yet in the index, so it is short.
CREATE INDEX chunks_words ON penstock.chunks USING gin (words) WITH (gin_pending_list_limit = 256);

CREATE FUNCTION penstock.mark(number bigint) RETURNS text
  LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN chr(1) || number::text;

CREATE FUNCTION penstock.word_matches(wanted bigint, query tsquery)
  RETURNS TABLE (document bigint, ordinal int, words tsvector, metadata jsonb)
  LANGUAGE sql STABLE SECURITY DEFINER ROWS 200
  SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  AS $$
    SELECT c.document, c.ordinal, c.words, c.metadata FROM penstock.chunks c
    WHERE c.words @@ (quote_literal(penstock.mark(wanted))::tsquery && query)
    AND c.tenant = current_setting('penstock.tenant', true)
  $$;

GRANT USAGE ON SCHEMA penstock TO penstock_tenant, penstock_keeper;
GRANT SELECT ON penstock.format TO penstock_tenant, penstock_keeper;
GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.collections, penstock.documents, penstock.chunks
  TO penstock_tenant, penstock_keeper;
REVOKE EXECUTE ON FUNCTION penstock.word_matches FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock.word_matches TO penstock_tenant;
GRANT CREATE ON SCHEMA penstock TO penstock_keeper;
ALTER FUNCTION penstock.word_matches OWNER TO penstock_keeper;
REVOKE CREATE ON SCHEMA penstock FROM penstock_keeper;

DO $$ DECLARE name text; BEGIN
  FOREACH name IN ARRAY ARRAY['collections', 'documents', 'chunks'] LOOP
    EXECUTE format('ALTER TABLE penstock.%I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('ALTER TABLE penstock.%I FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY of_tenant ON penstock.%I TO penstock_tenant '
      'USING (tenant = current_setting(''penstock.tenant'', true)) '
      'WITH CHECK (tenant = current_setting(''penstock.tenant'', true))', name);
    EXECUTE format('CREATE POLICY of_keeper ON penstock.%I TO penstock_keeper USING (true) WITH CHECK (true)', name);
  END LOOP;
END $$;
"""

#: Vector stores are collections, and their files documents, which a door loads after the request. `loaded` is false for
#: a document that has no chunks yet; `claim` names the load of the door that has claimed it until `claimed_until`.
_VECTOR_STORES = """
ALTER TABLE penstock.collections ADD COLUMN title text, ADD COLUMN description text,
  ADD COLUMN labels jsonb NOT NULL DEFAULT '{}';
ALTER TABLE penstock.documents
  ADD COLUMN filename text,
  ADD COLUMN added_at timestamptz,
  ADD COLUMN loaded boolean NOT NULL DEFAULT true,
  ADD COLUMN state text NOT NULL DEFAULT 'completed'
    CHECK (state IN ('in_progress', 'completed', 'failed', 'cancelled')),
  ADD COLUMN error_code text,
  ADD COLUMN error text,
  ADD COLUMN batch text,
  ADD COLUMN chunk_tokens int,
  ADD COLUMN overlap_tokens int,
  ADD COLUMN key_label text,
  ADD COLUMN key_digest text,
  ADD COLUMN attempts int NOT NULL DEFAULT 0,
  ADD COLUMN claim text,
  ADD COLUMN claimed_until timestamptz;
-- The owner of the tables is subject to their policies.
SET LOCAL ROLE penstock_keeper;
UPDATE penstock.documents SET added_at = loaded_at;
SET LOCAL ROLE NONE;
ALTER TABLE penstock.documents ALTER added_at SET DEFAULT clock_timestamp(), ALTER added_at SET NOT NULL,
  ALTER filename SET STATISTICS 0, ALTER error SET STATISTICS 0, ALTER key_label SET STATISTICS 0,
  ALTER key_digest SET STATISTICS 0, ALTER batch SET STATISTICS 0;
ALTER TABLE penstock.collections ALTER title SET STATISTICS 0, ALTER description SET STATISTICS 0,
  ALTER labels SET STATISTICS 0;
-- Whether an imported collection can keep its id. The keeper sees the rows of all tenants.
CREATE FUNCTION penstock.has_collection(wanted text) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  AS $$ SELECT EXISTS (SELECT FROM penstock.collections WHERE id = wanted) $$;
REVOKE EXECUTE ON FUNCTION penstock.has_collection FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock.has_collection TO penstock_tenant;
GRANT CREATE ON SCHEMA penstock TO penstock_keeper;
ALTER FUNCTION penstock.has_collection OWNER TO penstock_keeper;
REVOKE CREATE ON SCHEMA penstock FROM penstock_keeper;
CREATE INDEX documents_waiting ON penstock.documents (tenant, number) WHERE state = 'in_progress';
CREATE INDEX documents_by_batch ON penstock.documents (collection, batch) WHERE batch IS NOT NULL;
"""

#: A search by words first looks at a sample of a collection's chunks, in the order of an index. The function returns a
#: bounded number of those that match.
_BOUNDED_WORDS = """
CREATE INDEX chunks_sample ON penstock.chunks (collection, hashint8extended(document, ordinal));
ALTER INDEX penstock.chunks_sample ALTER 2 SET STATISTICS 0;
DROP FUNCTION penstock.word_matches(bigint, tsquery);
CREATE FUNCTION penstock.word_matches(wanted bigint, query tsquery, most int)
  RETURNS TABLE (document bigint, ordinal int, words tsvector, metadata jsonb)
  LANGUAGE sql STABLE SECURITY DEFINER ROWS 200
  -- Of all paths to the rows, only a bitmap of the index of words is left.
  SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = off
  AS $$
    SELECT c.document, c.ordinal, c.words, c.metadata FROM penstock.chunks c
    WHERE c.words @@ (quote_literal(penstock.mark(wanted))::tsquery && query)
    AND c.tenant = current_setting('penstock.tenant', true) LIMIT most
  $$;
REVOKE EXECUTE ON FUNCTION penstock.word_matches FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock.word_matches TO penstock_tenant;
GRANT CREATE ON SCHEMA penstock TO penstock_keeper;
ALTER FUNCTION penstock.word_matches OWNER TO penstock_keeper;
REVOKE CREATE ON SCHEMA penstock FROM penstock_keeper;
"""

#: The steps from the format before to each format.
STEPS = {1: _FIRST, 2: _VECTOR_STORES, 3: _BOUNDED_WORDS}


def prepare(
    connection: "psycopg.Connection[tuple[object, ...]]", change_begins: Callable[[], None] = lambda: None
) -> str:
    """Create the tables, or bring them to this version's format, and return the search path with pgvector's schema.

    `change_begins` is called before a change of the format, which may make an index of all chunks. The connection
    commits each statement. Raises DatabaseAway if the database cannot be used by this version, and psycopg.Error.
    """
    with connection.transaction():
        _check_encoding(connection)
        number = _stored_format(connection)
        if number != FORMAT:
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(f"{_LOCK_S}s"))
            connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", (LOCK_CLASS, FORMAT_LOCK))
            stored = _stored_format(connection)
            if stored < FORMAT:
                connection.execute("SET LOCAL statement_timeout = 0")
                change_begins()
            _migrate(connection, stored)
        vector_schema = _vector_schema(connection)
        # Loads pgvector, whose settings the server otherwise takes for unknown names.
        connection.execute(sql.SQL("SELECT '[1]'::{}.vector").format(sql.Identifier(vector_schema)))
    return f'penstock, "{vector_schema.replace(chr(34), 2 * chr(34))}"'


def check_format(number: object) -> None:
    """Raise DatabaseAway if the tables have another format than this version writes."""
    if number != FORMAT:
        raise DatabaseAway(
            f"its tables have format {number}, and this version of Penstock has format {FORMAT}: "
            "upgrade this process (docs/upgrade.md)"
        )


def _stored_format(connection: "psycopg.Connection[tuple[object, ...]]") -> int:
    """Return the format of the tables, 0 before they are created."""
    # to_regclass() gives the same answer again in a transaction, although another process creates the table meanwhile.
    row = connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'penstock' AND c.relname = 'format'"
    ).fetchone()
    if row is None:
        return 0
    row = connection.execute("SELECT number FROM penstock.format").fetchone()
    return int(str(row[0])) if row else 0


def _check_encoding(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    row = connection.execute("SHOW server_encoding").fetchone()
    # In SQL_ASCII, texts are read as bytes.
    encoding = row[0].decode() if row and isinstance(row[0], bytes) else row and row[0]
    if encoding != "UTF8":
        raise DatabaseAway(f"its encoding is {encoding}, and has to be UTF8 (CREATE DATABASE … ENCODING 'UTF8')")


def _migrate(connection: "psycopg.Connection[tuple[object, ...]]", number: int) -> None:
    if number > FORMAT:
        check_format(number)
    if number:
        # Waits for transactions that write in the old format, and keeps others from beginning.
        connection.execute("LOCK TABLE penstock.format IN ACCESS EXCLUSIVE MODE")
    else:
        try:
            with connection.transaction():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                connection.execute(_ROLES)
                connection.execute("CREATE SCHEMA IF NOT EXISTS penstock")
        except (errors.InsufficientPrivilege, errors.UndefinedFile, errors.FeatureNotSupported) as error:
            raise DatabaseAway(
                f"it cannot be prepared ({error.diag.message_primary}); docs/deploy.md lists what its administrator "
                "has to run"
            ) from None
    vector = sql.Identifier(_vector_schema(connection), "vector")
    for step in range(number + 1, FORMAT + 1):
        connection.execute(STEPS[step].replace("{vector}", vector.as_string(connection)).encode())
    connection.execute("UPDATE penstock.format SET number = %s", (FORMAT,))


def _vector_schema(connection: "psycopg.Connection[tuple[object, ...]]") -> str:
    """Return the schema of pgvector. Raises DatabaseAway if it is missing or too old."""
    row = connection.execute(
        "SELECT n.nspname, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
        "WHERE e.extname = 'vector'"
    ).fetchone()
    if row is None:
        raise DatabaseAway("it has no extension vector (pgvector)")
    schema, version = str(row[0]), str(row[1])
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_PGVECTOR:
        raise DatabaseAway(f"its pgvector {version} is older than 0.8; ALTER EXTENSION vector UPDATE")
    return schema
