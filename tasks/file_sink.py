"""Files stream into storage, and are recorded once they are there."""

from collections.abc import Iterable

from sqlalchemy import select

from tasks.audit import audit
from tasks.backends import Backends
from tasks.byte_sink import ByteSink
from tasks.clock import now_ms
from tasks.failpoints import Failpoint, failpoint
from tasks.ids import new_file_id
from tasks.tables import File


class FileSink(ByteSink):
    """A file on its way into storage; nobody sees it before `finish`."""

    def __init__(self, backends: Backends, *, tenant: str) -> None:
        self._backends = backends
        self._tenant = tenant
        self._id = new_file_id()
        limit_bytes = backends.settings.max_file_bytes
        super().__init__(backends.storage, f"files/{self._id}", limit_bytes, "max_file_bytes")

    def finish(
        self,
        *,
        filename: str,
        purpose: str = "batch",
        expires_s: float | None = None,
        job_id: str | None = None,
    ) -> File:
        """Make the bytes visible in storage and record them.

        `expires_s` counts from now; null: as the settings say for inputs, never for other files.
        """
        self.close()
        failpoint(Failpoint.FILE_STORED)
        if expires_s is None and purpose == "batch":
            expires_s = self._backends.settings.file_expires_s
        try:
            with self._backends.database.write() as session:
                created = session.execute(select(now_ms())).scalar_one()
                file = File(
                    id=self._id,
                    tenant=self._tenant,
                    purpose=purpose,
                    filename=filename,
                    bytes=self.size_bytes,
                    sha256=self.sha256,
                    storage_key=self.storage_key,
                    job_id=job_id,
                    created_ms=created,
                    expires_ms=None if expires_s is None else created + int(expires_s * 1000),
                    deleted_ms=None,
                )
                session.add(file)
                audit(session, self._tenant, "file.created", file.id, purpose=purpose, bytes=file.bytes)
        except BaseException:
            self._backends.storage.delete(self.storage_key)
            raise
        return file


def store_file(
    backends: Backends,
    blocks: Iterable[bytes],
    *,
    filename: str,
    tenant: str = "local",
    purpose: str = "batch",
    expires_s: float | None = None,
    job_id: str | None = None,
) -> File:
    """Stream a file into storage and record it.

    Raises:
        UserError: it is larger than `max_file_bytes`.
    """
    sink = FileSink(backends, tenant=tenant)
    try:
        for block in blocks:
            sink.write(block)
    except BaseException:
        sink.abandon()
        raise
    return sink.finish(filename=filename, purpose=purpose, expires_s=expires_s, job_id=job_id)
