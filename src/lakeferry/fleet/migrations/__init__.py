"""Alembic's migrations of the fleet's tables. The first write runs those that are missing."""
