"""The accounts that may use Penstock: tenants with their policies, and API keys."""
