"""Which job's chunks go onto the runway next."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.dispatch import WaitingJob, choose_next, queue_name
from tasks.tables import Lane

JOBS = st.lists(
    st.builds(
        WaitingJob,
        job_id=st.uuids().map(str),
        lane=st.sampled_from(Lane),
        created_ms=st.integers(0, 5),
        pending_chunks=st.integers(1, 20),
    ),
    max_size=8,
    unique_by=lambda job: job.job_id,
)


def test_the_more_urgent_lane_goes_first_then_the_older_job() -> None:
    waiting = [
        WaitingJob("bulk", Lane.BULK, 1, 5),
        WaitingJob("young", Lane.NORMAL, 9, 5),
        WaitingJob("old", Lane.NORMAL, 2, 5),
        WaitingJob("urgent", Lane.URGENT, 10, 5),
    ]
    assert choose_next(waiting, 12) == [("urgent", 5), ("old", 5), ("young", 2)]


def test_jobs_of_the_same_moment_have_an_order() -> None:
    waiting = [WaitingJob(name, Lane.NORMAL, 1, 1) for name in "cab"]
    assert choose_next(waiting, 2) == [("a", 1), ("b", 1)]


def test_nothing_goes_where_there_is_no_room() -> None:
    assert choose_next([WaitingJob("a", Lane.NORMAL, 1, 1)], 0) == []
    assert choose_next([WaitingJob("a", Lane.NORMAL, 1, 1)], -3) == []
    assert choose_next([], 5) == []


@given(waiting=JOBS, room=st.integers(-2, 60))
def test_room_is_used_up_and_never_overdrawn(waiting: list[WaitingJob], room: int) -> None:
    chosen = choose_next(waiting, room)
    by_id = {job.job_id: job for job in waiting}
    assert sum(count for _, count in chosen) == min(max(room, 0), sum(job.pending_chunks for job in waiting))
    assert all(1 <= count <= by_id[job_id].pending_chunks for job_id, count in chosen)
    ranks = [(by_id[job_id].lane.rank, by_id[job_id].created_ms) for job_id, _ in chosen]
    assert ranks == sorted(ranks)
    assert choose_next(list(reversed(waiting)), room) == chosen


def test_each_lane_of_a_model_has_its_queue() -> None:
    names = [queue_name("org/model", lane) for lane in Lane]
    assert names == ["org/model.urgent", "org/model.normal", "org/model.bulk"]
    assert [lane.rank for lane in Lane] == [0, 1, 2]
