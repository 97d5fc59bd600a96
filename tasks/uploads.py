"""Files that come in parts, as OpenAI's Uploads API has them: for those too large for one request."""

import hashlib
from collections.abc import Iterator, Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from tasks.audit import audit
from tasks.backends import Backends
from tasks.byte_sink import ByteSink
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import Conflict, NotFound, UserError
from tasks.file_sink import FileSink
from tasks.files import delete_file
from tasks.ids import new_part_id, new_upload_id
from tasks.tables import File, Upload, UploadPart, UploadStatus

LIFETIME_MS = 3_600_000
"""Time between an upload's creation and its completion, as with OpenAI."""

MAX_PART_BYTES = 64 << 20
MAX_PARTS = 10_000


class PartSink(ByteSink):
    """One part on its way into storage."""

    def __init__(self, backends: Backends, upload: Upload) -> None:
        self._backends = backends
        self._upload = upload
        self._id = new_part_id()
        super().__init__(backends.storage, f"parts/{self._id}", MAX_PART_BYTES, "64 MiB a part")

    def finish(self) -> UploadPart:
        """Record the part.

        Raises:
            Conflict: the upload was completed or cancelled, or its time ran out.
            UserError: it has too many parts.
        """
        self.close()
        database = self._backends.database
        try:
            with database.write() as session:
                upload = _find(session, self._upload.id, self._upload.tenant)
                _must_be_pending(upload)
                parts = session.scalars(select(UploadPart.id).where(UploadPart.upload_id == upload.id)).all()
                if len(parts) >= MAX_PARTS:
                    raise UserError(f"An upload has at most {MAX_PARTS:,} parts.", param="data")
                part = UploadPart(
                    id=self._id,
                    upload_id=upload.id,
                    storage_key=self.storage_key,
                    bytes=self.size_bytes,
                    created_ms=session.execute(select(now_ms())).scalar_one(),
                )
                session.add(part)
        except BaseException:
            self._backends.storage.delete(self.storage_key)
            raise
        return part


def create_upload(
    backends: Backends,
    tenant: str,
    *,
    filename: str,
    purpose: str,
    size_bytes: int,
    file_expires_s: int | None = None,
) -> Upload:
    """Announce a file of `size_bytes` bytes.

    Raises:
        UserError: it is larger than `max_file_bytes`.
    """
    limit_bytes = backends.settings.max_file_bytes
    if size_bytes > limit_bytes:
        raise UserError(
            f"The file is larger than {limit_bytes} bytes (max_file_bytes).",
            code="file_too_large",
            param="bytes",
        )
    with backends.database.write() as session:
        created = session.execute(select(now_ms())).scalar_one()
        upload = Upload(
            id=new_upload_id(),
            tenant=tenant,
            purpose=purpose,
            filename=filename,
            bytes=size_bytes,
            status=UploadStatus.PENDING,
            file_id=None,
            file_expires_s=file_expires_s,
            created_ms=created,
            expires_ms=created + LIFETIME_MS,
        )
        session.add(upload)
        audit(session, tenant, "upload.created", upload.id, bytes=size_bytes)
    return upload


def get_upload(database: Database, upload_id: str, tenant: str) -> Upload:
    """An upload of this tenant.

    Raises:
        NotFound: there is none.
    """
    with database.read() as session:
        return _find(session, upload_id, tenant)


def open_part(backends: Backends, upload_id: str, tenant: str) -> PartSink:
    """Where the bytes of another part go.

    Raises:
        NotFound: there is no such upload.
        Conflict: it takes no more parts.
    """
    upload = get_upload(backends.database, upload_id, tenant)
    _must_be_pending(upload)
    return PartSink(backends, upload)


def complete_upload(
    backends: Backends, upload_id: str, tenant: str, part_ids: Sequence[str], md5: str | None = None
) -> tuple[Upload, File]:
    """Join the parts, in the order of `part_ids`, to one file. Completing again answers the same.

    Raises:
        NotFound: there is no such upload.
        Conflict: it was cancelled, or its time ran out.
        UserError: a part is unknown or named twice, or the size or the checksum differs.
    """
    upload = get_upload(backends.database, upload_id, tenant)
    if upload.status != UploadStatus.COMPLETED:
        _must_be_pending(upload)
        _complete(backends, upload, _parts_in_order(backends.database, upload, part_ids), md5)
        _drop_parts(backends, upload_id)
        upload = get_upload(backends.database, upload_id, tenant)
    with backends.database.read() as session:
        return upload, session.get_one(File, upload.file_id)


def _parts_in_order(database: Database, upload: Upload, part_ids: Sequence[str]) -> list[UploadPart]:
    with database.read() as session:
        rows = session.scalars(select(UploadPart).where(UploadPart.upload_id == upload.id))
        parts = {part.id: part for part in rows}
    for part_id in part_ids:
        if part_id not in parts:
            raise UserError(f"This upload has no part {part_id!r}.", param="part_ids")
    if len(set(part_ids)) < len(part_ids):
        raise UserError("A part is named more than once.", param="part_ids")
    chosen = [parts[part_id] for part_id in part_ids]
    size = sum(part.bytes for part in chosen)
    if size != upload.bytes:
        raise UserError(
            f"The parts have {size} bytes together; {upload.bytes} were announced.", param="part_ids"
        )
    return chosen


def _complete(backends: Backends, upload: Upload, parts: Sequence[UploadPart], md5: str | None) -> None:
    sink = FileSink(backends, tenant=upload.tenant)
    digest = hashlib.md5(usedforsecurity=False)
    try:
        for block in _blocks(backends, parts):
            digest.update(block)
            sink.write(block)
        if md5 is not None and md5.lower() != digest.hexdigest():
            raise UserError(f"The file's MD5 is {digest.hexdigest()}, not {md5}.", param="md5")
    except BaseException:
        sink.abandon()
        raise
    file = sink.finish(filename=upload.filename, purpose=upload.purpose, expires_s=upload.file_expires_s)
    with backends.database.write() as session:
        done = session.execute(
            update(Upload)
            .where(Upload.id == upload.id, Upload.status == UploadStatus.PENDING)
            .values(status=UploadStatus.COMPLETED, file_id=file.id)
            .returning(Upload.id)
        ).one_or_none()
        if done is not None:
            audit(session, upload.tenant, "upload.completed", upload.id, file=file.id)
            return
    # Somebody else completed or cancelled it while the parts were copied.
    delete_file(backends, file.id, upload.tenant)
    upload = get_upload(backends.database, upload.id, upload.tenant)
    if upload.status != UploadStatus.COMPLETED:
        _must_be_pending(upload)


def _blocks(backends: Backends, parts: Sequence[UploadPart]) -> Iterator[bytes]:
    for part in parts:
        yield from backends.storage.stream(part.storage_key)


def cancel_upload(backends: Backends, upload_id: str, tenant: str) -> Upload:
    """Give up an upload and free its parts. Cancelling twice is fine.

    Raises:
        NotFound: there is no such upload.
        Conflict: it was completed, or its time ran out.
    """
    with backends.database.write() as session:
        upload = _find(session, upload_id, tenant)
        if upload.status != UploadStatus.CANCELLED:
            _must_be_pending(upload)
            upload.status = UploadStatus.CANCELLED
            audit(session, tenant, "upload.cancelled", upload_id)
    _drop_parts(backends, upload_id)
    return get_upload(backends.database, upload_id, tenant)


def purge_uploads(backends: Backends) -> int:
    """End the uploads whose time ran out, and free the parts of all that have ended; returns how many.

    A part that arrives while its upload ends is freed by the next pass.
    """
    overdue = (Upload.status == UploadStatus.PENDING) & (Upload.expires_ms < now_ms())
    left = (Upload.status != UploadStatus.PENDING) & (
        select(UploadPart.id).where(UploadPart.upload_id == Upload.id).exists()
    )
    with backends.database.read() as session:
        ended = session.scalars(select(Upload.id).where(overdue | left)).all()
    for upload_id in ended:
        with backends.database.write() as session:
            session.execute(
                update(Upload).where(Upload.id == upload_id, overdue).values(status=UploadStatus.EXPIRED)
            )
        _drop_parts(backends, upload_id)
    return len(ended)


def _drop_parts(backends: Backends, upload_id: str) -> None:
    with backends.database.read() as session:
        parts = session.execute(
            select(UploadPart.id, UploadPart.storage_key).where(UploadPart.upload_id == upload_id)
        ).all()
    for _, storage_key in parts:
        backends.storage.delete(storage_key)
    if parts:
        with backends.database.write() as session:
            session.execute(delete(UploadPart).where(UploadPart.id.in_([part_id for part_id, _ in parts])))


def _find(session: Session, upload_id: str, tenant: str) -> Upload:
    upload = session.scalars(
        select(Upload).where(Upload.id == upload_id, Upload.tenant == tenant)
    ).one_or_none()
    if upload is None:
        raise NotFound("upload", upload_id)
    if upload.status == UploadStatus.PENDING:
        now = session.execute(select(now_ms())).scalar_one()
        if upload.expires_ms < now:
            # What the sweeper will write shortly.
            session.expunge(upload)
            upload.status = UploadStatus.EXPIRED
    return upload


def _must_be_pending(upload: Upload) -> None:
    if upload.status != UploadStatus.PENDING:
        raise Conflict(f"The upload is {upload.status}.", code="upload_ended")
