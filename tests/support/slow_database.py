"""A database whose searches sleep: the policy of a table calls pg_sleep before it lets a row pass."""

from tests.support.postgres import execute, rows

#: A function that sleeps for as long as the table `naps` says, in seconds.
_NAP = """
CREATE TABLE IF NOT EXISTS public.naps (seconds float8);
GRANT SELECT ON public.naps TO PUBLIC;
CREATE OR REPLACE FUNCTION public.nap() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN PERFORM pg_sleep(seconds) FROM public.naps; RETURN true; END $$;
"""


def let_sleep(url: str, table: str = "collections") -> None:
    """Let every query of a tenant that reads rows of a table sleep first, once `sleep` has said for how long."""
    execute(
        url,
        _NAP,
        f"ALTER POLICY of_tenant ON penstock.{table} "
        "USING (tenant = current_setting('penstock.tenant', true) AND public.nap())",
    )


def sleep(url: str, seconds: float) -> None:
    execute(url, f"BEGIN; DELETE FROM public.naps; INSERT INTO public.naps VALUES ({seconds}); COMMIT")


def sleepers(url: str) -> int:
    """Return how many connections of the database sleep now."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
        "AND wait_event = 'PgSleep'"
    )
    return int(str(rows(url, query)[0][0]))
