"""attempts counted apart from tokens, and requests that run alone"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Apply."""
    op.add_column("jobs", sa.Column("intake_attempts", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("chunks", sa.Column("alone_index", sa.BigInteger(), nullable=True))
    op.add_column("chunks", sa.Column("alone_starts", sa.BigInteger(), nullable=False, server_default="0"))
