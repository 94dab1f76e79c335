"""Where the two queues differ in what their tests can show, and why.

Each scenario of this directory runs on both queues, but for those listed in `MISSING`. What is beside it, in
`tests/celery` and `tests/rq`, is in `OWN`: facts that the other queue has no counterpart of. `test_parity.py` holds
that neither list names what is not there, and that no file of one queue is left out.
"""

from __future__ import annotations

from tests.scenarios.queues import CELERY, RQ

MISSING: dict[str, dict[str, str]] = {
    CELERY: {
        "test_a_job_whose_process_is_gone_before_it_claimed_leaves_its_place": (
            "Not yet: the parent process settles by the attempt alone, and nothing was claimed under that. The key is "
            "queued until a duplicate call publishes the job again (`republish_after`)."
        ),
    },
    RQ: {
        "test_a_run_beside_another_that_goes_back_leaves_nothing_in_the_queue": (
            "No body of RQ can give its message back to the broker: it returns, raises, or returns a Retry."
        ),
    },
}
"""By queue, the scenarios that it cannot show."""

OWN: dict[str, dict[str, str]] = {
    CELERY: {
        "test_answering": "Callbacks travel with a message, so another copy may have to send them; RQ's do not.",
        "test_calls": "Headers, canvases, countdowns, republishing: RQ itself knows what became of a job.",
        "test_canvas": "RQ has no chords, chains, groups of results, maps or replacements.",
        "test_closed_apps": "RQ has no app that is opened and closed.",
        "test_dead_workers": "Unacknowledged messages on a Redis broker; RQ has no such thing.",
        "test_decorator": "What Celery's decorators and task classes accept.",
        "test_deferring": "A deferred job is another message of Celery's; of RQ's it is the same job in its queue.",
        "test_direct_calls": "A task is called directly in several ways (`task()`, `run`); a function of RQ in one.",
        "test_eager": "`task_always_eager` and `apply`: canvases and retries run at once too.",
        "test_ends_of_slots": "Celery's own ends of a delivery: a retry or a replacement that cannot be written, say.",
        "test_events": "What Celery does to a message (Ignore, Reject, replace, revoke, hard limits), on each broker.",
        "test_faults": "Brokers that redeliver or lose messages, shutdowns of a pool, kinds of pools, result backends.",
        "test_first_success": "Celery's look for an earlier success in its result backend.",
        "test_harness": "The tools for Celery's workers.",
        "test_map_items": "RQ has no map, starmap or chunks.",
        "test_monitors": "Celery's events, for Flower and its like.",
        "test_off": "A worker that is switched off, by Celery's own start.",
        "test_options": "Options of Celery's tasks (acks_on_timeout, retry_on_worker_lost), and of Django's.",
        "test_reused_ids": "An id that is called again is one job of Celery's, and another job of RQ's.",
        "test_scheduled": "Ignore in a scheduled task; `on_store_error` is a setting of the app, also for plain tasks.",
        "test_settings": "Settings of the app.",
        "test_settling": "The parent process of Celery's pools, and its requests.",
        "test_shown": "What a message shows of its arguments.",
        "test_stacked_decorators": "Celery's decorators over and under ours.",
        "test_time_limits": "A limit while a message is published, or STARTED is stored: RQ's jobs do neither.",
        "test_unacked": "The steps by which an unacknowledged message goes back to its queue.",
        "test_unknown_options": "Celery takes any name as an option of a task, and RQ does not.",
    },
    RQ: {
        "test_by_name": "Functions that are guarded by their names, by a class of queues.",
        "test_calls": "RQ's ways to enqueue: many at once, groups, dependencies, unique ids, serializers.",
        "test_conflicts": "RQ retries whatever failed, and people requeue it; it knows whether a queued job will run.",
        "test_copies": "The intermediate queue; our workers look at the status of an id that is queued twice.",
        "test_cron": "RQ's cron.",
        "test_deaths": "A work horse and its worker, and what the worker settles for its horse.",
        "test_decorator": "What RQ can find again by its name.",
        "test_django_rq": "django-rq.",
        "test_events": "What RQ does to a job (cancel, delete, stop, repeat, abandon), with both kinds of workers.",
        "test_evicting_store": "RQ's own Redis is the store, and each horse would ask about its eviction.",
        "test_faults": "RQ's own Redis is the store: both are away together.",
        "test_health": "RQ's cron and its workers each keep a file for probes.",
        "test_history": "A horse that lives for one job only.",
        "test_job_metadata": "The hash of a job, which bodies and others write to.",
        "test_next_rq": "What RQ's next release changes.",
        "test_own_classes": "Classes of jobs and workers that others derive.",
        "test_pipelines": "Calls in a pipeline of the caller's own.",
        "test_pools": "RQ's pool of workers.",
        "test_queued_holders": "RQ itself knows what became of the job that holds a key.",
        "test_requeued": "RQ's registry of failed jobs, from which people requeue.",
        "test_reused_ids": "An id that is called again is another job of RQ's, and one job of Celery's.",
        "test_rq_dashboard": "rq-dashboard.",
        "test_rq_scheduler": "rq-scheduler.",
        "test_shared_keys": "Both queues at once, on one key.",
        "test_time_limits": "RQ's alarm, and its retry of a job that ran into it.",
        "test_timetable": "Lines of RQ's cron.",
        "test_waiting": "A job of RQ's waits in its horse, where its time must stand still.",
        "test_workers": "RQ's classes of workers, and jobs that are not guarded.",
    },
}
"""By queue, the files beside this directory, and what no scenario can hold of them."""


def queues_of(test: str) -> list[str]:
    """Those that a scenario runs on."""
    return [queue for queue in (CELERY, RQ) if test not in MISSING[queue]]
