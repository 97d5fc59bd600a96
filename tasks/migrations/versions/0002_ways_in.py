"""keys, files of results, kinds of jobs, figures"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("prefix"),
    )
    op.create_table(
        "progress",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("start_ms", sa.BigInteger(), nullable=False),
        sa.Column("width_ms", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "start_ms"),
    )
    op.create_index("progress_by_time", "progress", ["start_ms"])
    op.create_table(
        "tallies",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "subject", "key"),
    )
    with op.batch_alter_table("files") as files:
        files.alter_column("storage_key", existing_type=sa.Text(), nullable=True)
        files.add_column(sa.Column("job_id", sa.Text(), nullable=True))
        files.add_column(sa.Column("deleted_ms", sa.BigInteger(), nullable=True))
        files.create_index("files_by_age", ["tenant", "created_ms", "id"])
        files.create_index("ix_files_job_id", ["job_id"])
    with op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("input_file_id", existing_type=sa.Text(), nullable=True)
        jobs.add_column(sa.Column("kind", sa.Text(), nullable=False, server_default="requests"))
        jobs.add_column(sa.Column("parent_id", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("idempotency_key", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("idempotency_sha256", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("deleted_ms", sa.BigInteger(), nullable=True))
        jobs.add_column(sa.Column("output_expires_s", sa.BigInteger(), nullable=True))
        jobs.add_column(sa.Column("output_bytes", sa.BigInteger(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("error_bytes", sa.BigInteger(), nullable=False, server_default="0"))
        jobs.create_index("jobs_by_age", ["tenant", "created_ms", "id"])
        jobs.create_index("jobs_by_idempotency_key", ["tenant", "idempotency_key"], unique=True)
    # Which chunk an older result came from is not known; chunk 0 is as good as any for showing a prompt.
    op.add_column("results", sa.Column("chunk", sa.BigInteger(), nullable=False, server_default="0"))
