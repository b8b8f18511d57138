"""Schema changes, applied only when a store is older than the program. Alembic is imported then, not before."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

__all__ = ["upgrade"]


def upgrade(engine: Engine) -> None:
    """Bring an older store to the newest revision, in one transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
